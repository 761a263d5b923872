"""What ``promises --json`` and ``singles --json`` write."""

from __future__ import annotations

from pydantic import Field

from benchmarks.figures.schema import Count, Figures, Number


class PromiseRow(Figures):
    """One play under one policy; the words are those of :class:`benchmarks.promises.tally.Tally`.

    ``faults`` counts nodes about which deciding failed, ``gpus_sickened`` GPUs that fell sick.
    """

    placed: Count
    required: Count
    required_placed: Count
    promised: dict[str, Count]
    broken: dict[str, Count]
    excused: dict[str, Count]
    unreported: dict[str, Count]
    kubelet_refusals: dict[str, Count]
    unreported_refusals: dict[str, Count]
    refused_by_bind: Count
    gave_up: Count
    unexcused: dict[str, Count]
    stale: Count
    blind: Count
    faults: Count
    forced: Count
    late_commits: Count
    blindings: Count
    deaths: Count
    recreated: Count
    foreign: Count
    restarts: Count
    kubelet_restarts: Count
    gpus_sickened: Count
    reasons: dict[str, Count]


class Promises(Figures):
    """The whole file of ``promises``; ``fleet`` is how many nodes of each machine there are."""

    pods: Count
    seed: int
    fleet: dict[str, Count]
    policies: dict[str, PromiseRow]


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
