"""Kinds of pods that a node's kubelet has admitted since the node last changed.

Where no policy of the Topology Manager and no static manager treats the next pod differently
(:func:`one_like_the_other`), its kubelet answers it like the one before. Then nobody has to wait
for that answer before more of them are bound (:mod:`scheduler_extender.verbs.turns`). Any change of
the node ends the proof: of its hardware or policies, of the GPUs that it calls allocatable, sick or
missing, of what kube-scheduler gives out there; a boot, a time in which its agent could not vouch
for it or said nothing, and a refusal, whatever its kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from topology.core.devices import PodUid
from topology.core.graph import AllocatorFacts
from topology.core.requests import GpuRequest

MOST_PROVEN = 32
"""Kinds that are remembered, for each node; with one more it begins anew."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The ``kinds`` that were admitted since the last change.

    ``beside`` are the pods that were on the node at that moment: they may have been admitted before
    it, whenever we hear of it, and prove nothing.
    """

    kinds: frozenset[GpuRequest] = frozenset()
    beside: frozenset[PodUid] = frozenset()

    def by(self, uid: PodUid, kind: GpuRequest) -> Proven:
        """The same after a pod of a kind has been admitted."""
        if uid in self.beside or kind in self.kinds:
            return self
        others = self.kinds if len(self.kinds) < MOST_PROVEN else frozenset[GpuRequest]()
        return Proven(others | {kind}, self.beside)


NOTHING_PROVEN = Proven()


def one_like_the_other(kind: GpuRequest, facts: AllocatorFacts) -> bool:
    """Whether nothing but the number of free devices tells two pods of a kind apart.

    A policy of the Topology Manager and a static manager look at which devices, CPUs and memory are
    left, and other device plugins at what they have.
    """
    cpus = kind.exclusive.cpus and facts.cpu_manager_policy != "none"
    memory = kind.exclusive.memory and facts.memory_manager_policy != "None"
    policy = facts.topology_manager_policy != "none"
    return kind.only_gpu_plugin and not (policy or cpus or memory)
