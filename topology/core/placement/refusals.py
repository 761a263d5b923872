"""Refusals that are certain: whatever else happens on the node, its kubelet turns the pod away.

Outcomes are a superset of what a node may hand out. So where there are none, and the refusals that
were met on the way are known (the hazards), the kubelet refuses the pod, whichever constraints it
has or has not: a pod that is bound there is lost (it becomes Failed) and its controller makes the
next one, which is bound there too.
"""

from __future__ import annotations

from topology.core.admission import AFFINITY, SEVERAL, Kubelet, others_on
from topology.core.availability import Availability
from topology.core.budget import SPENT
from topology.core.placement.outlook import Outlook, outlook
from topology.core.placement.rejections import (
    Reason,
    Rejection,
    busy,
    device_unit,
    unit_of,
)
from topology.core.requests import Exclusive, GpuRequest, memory_text
from topology.core.room import emptied


def certain_refusal(
    kubelet: Kubelet, now: Availability, request: GpuRequest, found: Outlook
) -> Rejection | None:
    """Why the kubelet surely refuses the pod at this moment; None where it may admit it.

    ``found`` is the pod's outlook. The rejection is resolvable if the node might hand something out
    with every running pod gone.
    """
    if not _refuses(found):
        return None
    others = others_on(
        kubelet,
        now.room_for(kubelet, endings=False),
        request.counts,
        only_gpu_plugin=request.only_gpu_plugin,
        exclusive=request.exclusive,
    )
    alone = outlook(
        kubelet,
        _with_all_pods_gone(kubelet, now),
        request.counts,
        request.only_gpu_plugin,
        request.exclusive,
    )
    resolvable = not _refuses(alone)
    of_plugin = kubelet.allocator.words(found.hazards)
    if of_plugin and kubelet.allocator.broken:
        words = of_plugin
    elif SEVERAL in found.hazards:
        words = "NVIDIA's device plugin gives a container no more than one share of a GPU"
    elif others.refused:
        words = others.reason
    elif AFFINITY in found.hazards:
        words = _affinity_words(kubelet, now, request, resolvable)
    elif of_plugin:
        words = of_plugin
    else:
        return busy(
            device_unit(kubelet)
        )  # devices enough in all, and too few for one of the containers
    return Rejection(words, resolvable, Reason.KUBELET)


def _refuses(found: Outlook) -> bool:
    return found.sets == () and bool(found.hazards) and SPENT not in found.hazards


def _with_all_pods_gone(kubelet: Kubelet, now: Availability) -> Availability:
    numa = kubelet.facts.numa
    room = None if numa is None or now.room is None else emptied(numa)
    return Availability(now.widest(endings=True), width=now.width, gone=now.gone, room=room)


def _affinity_words(
    kubelet: Kubelet, now: Availability, request: GpuRequest, resolvable: bool
) -> str:
    """What no NUMA nodes have: GPUs, and CPUs and memory where the ones before alone would do."""
    policy = kubelet.facts.topology_manager_policy
    some = _to_align(kubelet, now, request)
    if not resolvable:
        return f"Topology Manager {policy}: {some} cannot be aligned here, whichever pods end"
    if policy == "single-numa-node":
        return f"Topology Manager {policy}: no NUMA node has {some} free"
    return f"Topology Manager {policy}: {some} are free on more NUMA nodes than they need to be"


def _to_align(kubelet: Kubelet, now: Availability, request: GpuRequest) -> str:
    most = max(n for _, n in request.counts)
    unit = unit_of(kubelet.shape)
    words = [f"1 {unit}" if most == 1 else f"{most} {unit}s"]
    asked = [demand for demand in request.exclusive.demands if demand.devices]
    cpus = max((demand.cpus for demand in asked), default=0)
    memory = max((dict(demand.memory).get("memory", 0) for demand in asked), default=0)
    demands = tuple(demand._replace(memory=()) for demand in request.exclusive.demands)
    without_memory = Exclusive(cpus=request.exclusive.cpus, demands=demands)
    if cpus and not _refused_to(kubelet, now, request, Exclusive.NOTHING):
        words.append(f"{cpus} CPU{'s' if cpus > 1 else ''}")
    if memory and not _refused_to(kubelet, now, request, without_memory):
        words.append(f"{memory_text(memory)} of memory")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _refused_to(
    kubelet: Kubelet, now: Availability, request: GpuRequest, exclusive: Exclusive
) -> bool:
    """Whether the pod would be refused with other CPUs and memory of its own."""
    key = now.outcome_key(endings=False, exclusive=exclusive)
    return _refuses(outlook(kubelet, key, request.counts, request.only_gpu_plugin, exclusive))
