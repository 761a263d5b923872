"""How a node's kubelet has answered pods: its refusals that count, and what it has admitted.

A kind of pods is *proven* if the kubelet has admitted one of them since the node last changed. It
answers the next one alike, unless a policy of the Topology Manager or a static manager treats it
differently. Then more of them may be bound before it answers
(:mod:`scheduler_extender.verbs.binding`). Any change of the node ends the proof: of its hardware or
policies, of the GPUs that it calls allocatable, sick or missing, of what kube-scheduler gives out
there. So do a boot, a time in which the agent could not vouch for the node or was silent, and a
refusal of any kind.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from scheduler_extender.state.node.backoff import Backoff, Backoffs, kind_of
from topology.core.devices import PodUid
from topology.core.graph import AllocatorFacts
from topology.core.requests import GpuRequest

MOST_PROVEN = 32  # proven kinds that are remembered, for each node; with one more it begins anew
MOST_ADMITTED = 32  # kinds of pods that are remembered as admitted, for each node and resource


@dataclass(frozen=True, slots=True, eq=False)
class KubeletHistory:
    """The answers of one node's kubelet."""

    backoffs: Mapping[str, Backoffs] = field(default_factory=dict)  # by resource
    # By resource the kinds of pods of which one was admitted, with the latest start time by the
    # kubelet's clock; minus infinity if no status had one.
    admitted: Mapping[str, Mapping[GpuRequest, float]] = field(default_factory=dict)
    proven: frozenset[GpuRequest] = frozenset()
    # Pods that were on the node when it last changed: they may have been admitted before that,
    # whenever we hear of it, and prove nothing.
    beside: frozenset[PodUid] = frozenset()
    resumed: float = 0.0  # when an operator has forgiven all refusals, in seconds since 1970

    def refusing(self, request: GpuRequest, trying: Collection[GpuRequest]) -> Backoff | None:
        """The back-off for which the node takes no pod with this request now; None if it takes one.

        ``trying`` are the kinds of the pods that the kubelet has not answered.
        """
        backoffs = self.backoffs.get(request.resource)
        return None if backoffs is None else backoffs.keeps_away(kind_of(request), trying)

    def key(self, resource: str, trying: Collection[GpuRequest]) -> tuple[Hashable, ...]:
        """All that :meth:`refusing` depends on."""
        backoffs = self.backoffs.get(resource)
        return () if backoffs is None else (backoffs.key, frozenset(trying))

    def admitted_over(self, resource: str) -> Mapping[GpuRequest, float]:
        """The kinds over a resource of which one was admitted."""
        return self.admitted.get(resource, {})

    def surely_admits(self, request: GpuRequest, allocator: AllocatorFacts) -> bool:
        """Whether the kubelet admits a pod with this request like the last one of its kind, if it
        has devices enough and the model knows of no hazard."""
        kind = kind_of(request)
        return kind in self.proven and _one_like_the_other(kind, allocator)

    def unproven(self, here: frozenset[PodUid]) -> KubeletHistory:
        """The same after a change of the node, with these pods on it."""
        return replace(self, proven=frozenset(), beside=here)

    def with_proven(self, uid: PodUid, kind: GpuRequest) -> KubeletHistory:
        """The same after a pod of a kind has been admitted."""
        if uid in self.beside or kind in self.proven:
            return self
        others = self.proven if len(self.proven) < MOST_PROVEN else frozenset()
        return replace(self, proven=others | {kind})

    def with_backoffs(self, resource: str, backoffs: Backoffs | None) -> KubeletHistory:
        """The same with other back-offs over a resource; None for none."""
        if backoffs == self.backoffs.get(resource):
            return self
        others = {name: theirs for name, theirs in self.backoffs.items() if name != resource}
        return replace(
            self, backoffs=others if backoffs is None else {**others, resource: backoffs}
        )

    def with_admitted(
        self, resource: str, kind: GpuRequest, started: float | None
    ) -> KubeletHistory:
        """The same with an admitted kind; of too many the ones admitted last stay."""
        known = self.admitted_over(resource)
        at = max(known.get(kind, -inf), -inf if started is None else started)
        if known.get(kind) == at:
            return self
        kinds = {**known, kind: at}
        if len(kinds) > MOST_ADMITTED:
            del kinds[min(kinds, key=kinds.__getitem__)]
        return replace(self, admitted={**self.admitted, resource: kinds})


def _one_like_the_other(kind: GpuRequest, facts: AllocatorFacts) -> bool:
    """Whether nothing but the number of free devices tells two pods of a kind apart.

    A policy of the Topology Manager and a static manager look at which devices, CPUs and memory are
    left, and other device plugins at what they have.
    """
    cpus = kind.exclusive.cpus and facts.cpu_manager_policy != "none"
    memory = kind.exclusive.memory and facts.memory_manager_policy != "None"
    policy = facts.topology_manager_policy != "none"
    return kind.only_gpu_plugin and not (policy or cpus or memory)
