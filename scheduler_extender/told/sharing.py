"""Shared GPUs: who is on which with whom, and how much memory that comes to."""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from scheduler_extender.state.node.facts import NodeFacts, Offer
from scheduler_extender.told.struct import Struct
from scheduler_extender.told.words import GONE, pod_names
from topology.core.devices import MIB
from topology.core.placement import used_memory
from topology.core.pools import count


class SharedGpu(Struct, frozen=True):
    """One shared GPU, or one shared MIG instance of it."""

    gpu: Annotated[int, Meta(description="the driver's index")]
    resource: str
    profile: Annotated[str, Meta(description="of a MIG instance; empty for a GPU")]
    shares: Annotated[int, Meta(ge=0)]
    free: Annotated[int, Meta(ge=0, description="shares that no report shows as held")]
    memory: Annotated[int, Meta(ge=0, description="bytes")]
    used: Annotated[
        int, Meta(ge=0, description="bytes that its pods use, by what they say or by their shares")
    ]
    pods: Annotated[list[str], Meta(description="those that a report shows on it")]


def shared_gpus(facts: NodeFacts, offer: Offer) -> list[SharedGpu]:
    """The GPUs that a node shares among pods by one of its offers; empty if it shares none."""
    if offer.resource.replicas == 1:
        return []
    devices, now, gpus = offer.devices, offer.availability, offer.topology.gpus
    profiles = {part.uuid: part.profile for gpu in gpus for part in gpu.mig_instances}
    profile_at = {at: profiles.get(uuid, "") for uuid, at in devices.position_of.items()}
    names = pod_names(facts)
    memories = used_memory(offer.kubelet, now)
    return [
        SharedGpu(
            gpu=devices.indices_of[p],
            resource=offer.resource.name,
            profile=profile_at[p],
            shares=shares,
            free=count(now.free, p, now.width),
            memory=memory.memory,
            used=memory.used,
            pods=sorted(
                names.get(uid, GONE)
                for uid, pool in offer.ledger.shown.items()
                if count(pool, p, now.width)
            ),
        )
        for p, (shares, memory) in enumerate(zip(devices.counts, memories, strict=True))
    ]


def memory_in_use(gpus: Iterable[SharedGpu]) -> str:
    """In a line: the GPUs that are in use, and how much of their memory.

    >>> pods = ["a/b", "a/c"]
    >>> memory_in_use([SharedGpu(0, "nvidia.com/gpu", "", 4, 2, 48 * MIB, 30 * MIB, pods)])
    'GPU 0: 30 of 48 MiB used by 2 pods'
    """
    return ", ".join(
        f"GPU {gpu.gpu}{f' ({gpu.profile})' if gpu.profile else ''}: "
        f"{gpu.used // MIB} of {gpu.memory // MIB} MiB used by {len(gpu.pods)} "
        f"pod{'s' if len(gpu.pods) != 1 else ''}"
        for gpu in gpus
        if gpu.pods
    )
