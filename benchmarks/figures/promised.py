"""What ``promises --json``, ``singles --json`` and ``promises-by-kind --json`` write."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from benchmarks.figures.schema import Count, Figures, Number


class Promises(Figures):
    """The whole file of ``promises``."""

    pods: Count
    seed: int
    fleet: dict[str, Count]  # how many nodes of each machine there are
    policies: dict[str, dict[str, Any]]  # counts of :class:`benchmarks.promises.tally.Tally`


class Shares(Figures):
    """The share of each kind of pod that was placed at once, 0 to 1, seed by seed."""

    single: tuple[Number, ...]
    pair: tuple[Number, ...]
    quad: tuple[Number, ...]
    pair_or_quad: tuple[Number, ...] = Field(serialization_alias="pair or quad")


class Singles(Figures):
    """The whole file of ``singles``."""

    pods: Count
    seeds: tuple[int, ...]
    fleet: dict[str, Count]
    shares: dict[str, Shares]


class KindRow(Figures):
    """Sums over the plays of one kind under one policy."""

    asked: Count
    placed: Count
    required: Count  # pods with constraints
    required_placed: Count
    guaranteed: Count  # promises
    expected: Count
    guaranteed_broken: Count
    expected_broken: Count
    unreported: Count  # broken after an event on the node that no report could tell of
    memory_exceeded: Count  # admissions after which a shared GPU's pods use more than its memory
    memory_unreported: Count  # the same after such an event
    devices_short: Count  # pods that a kubelet refused for want of devices
    group_members: Count  # that were bound
    whole_groups: Count  # that lived with all their members at one time
    split_groups: Count  # members outside their group's domain
    gang_binds: Count
    gang_refusals_known: Count  # for a reason that was known when the gang passed filter
    gang_refusals_changed: Count  # something had changed since
    # kube-scheduler had counted more free GPUs than the extender knew of: one has fallen sick, or a
    # bind of the gang had no answer and may be written yet.
    gang_refusals_miscounted: Count
    not_foreseen: Count  # GPUs that verification did not see in the outcomes
    faults: Count  # nodes about which deciding failed

    @property
    def kept(self) -> bool:
        """Whether all was kept that is promised to hold always."""
        return not (
            self.guaranteed_broken
            or self.memory_exceeded
            or self.split_groups
            or self.gang_refusals_known
            or self.not_foreseen
            or self.faults
        )


class ByKind(Figures):
    """The whole file of ``promises-by-kind``."""

    placements: Count
    seed: int
    rounds: Count
    rare_faults: dict[str, Number]  # the rates in the rows with rare faults
    rows: dict[str, KindRow]  # the extender's, by what is placed
    oracle: dict[str, KindRow]  # those beside it
