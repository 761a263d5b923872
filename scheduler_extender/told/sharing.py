"""Shared GPUs, told to people: who is on which with whom, and how much memory that comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.ledger import Ledger
from topology.core.devices import MIB, GpuResource, PodUid
from topology.core.placement import Rejection, used_memory
from topology.core.pools import count

GONE = "a pod that is gone"
"""In place of a pod's name, where nobody says it any more."""


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """One shared GPU, by its driver index, or one shared MIG instance of it.

    ``shares`` is how many it has, ``free`` how many of them no report shows as held. ``pods`` are
    those that a report shows on it, ``used`` the bytes of its ``memory`` that they use by what they
    say, or by their shares. ``profile`` is that of a MIG instance, and empty for a GPU.
    """

    gpu: int
    resource: str
    profile: str
    shares: int
    free: int
    memory: int
    used: int
    pods: list[str]


def full_name(namespace: str, name: str) -> str:
    """A pod's name with its namespace, as whoever may see all pods is told it."""
    return f"{namespace}/{name}"


def shared_gpus(
    facts: NodeFacts, served: GpuResource, name: Callable[[str, str], str] = full_name
) -> list[SharedGpu]:
    """The GPUs that a node shares among pods as one resource; none where it shares none.

    ``name`` makes of a pod's namespace and name what the reader is told.
    """
    offer = facts.last_offer(served.name)
    if served.replicas == 1 or isinstance(offer, Rejection):
        return []
    devices, now, gpus = offer.devices, offer.availability, offer.topology.gpus
    profiles = {part.uuid: part.profile for gpu in gpus for part in gpu.mig_instances}
    of = {at: profiles.get(uuid, "") for uuid, at in devices.position_of.items()}
    told = facts.report.allocations if facts.report is not None else ()
    names = {each.pod_uid: name(each.namespace, each.pod) for each in told}
    names |= {pod.uid: name(pod.namespace, pod.name) for pod in facts.all_pods}
    return [
        SharedGpu(
            devices.indices_of[p],
            served.name,
            of[p],
            there,
            count(now.free, p, now.width),
            memory.memory,
            memory.used,
            _on(offer.ledger, p, now.width, names),
        )
        for p, (there, memory) in enumerate(
            zip(devices.counts, used_memory(offer.kubelet, now), strict=True)
        )
    ]


def _on(found: Ledger, position: int, width: int, names: dict[PodUid, str]) -> list[str]:
    """The pods that a report shows on a GPU, as the reader is told them."""
    pods = (uid for uid, pool in found.shown.items() if count(pool, position, width))
    return sorted(names.get(uid, GONE) for uid in pods)


def memory_in_use(rows: Iterable[SharedGpu]) -> str:
    """In a line: the GPUs that are in use, and how much of their memory.

    >>> pods = ["a/b", "a/c"]
    >>> memory_in_use([SharedGpu(0, "nvidia.com/gpu", "", 4, 2, 48 * MIB, 30 * MIB, pods)])
    'GPU 0: 30 of 48 MiB used by 2 pods'
    """
    used = [
        f"GPU {row.gpu}{f' ({row.profile})' if row.profile else ''}: "
        f"{row.used // MIB} of {row.memory // MIB} MiB used by {len(row.pods)} "
        f"pod{'s' if len(row.pods) != 1 else ''}"
        for row in rows
        if row.pods
    ]
    return ", ".join(used)
