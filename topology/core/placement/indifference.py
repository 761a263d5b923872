"""Pods for which any devices will do: what holds for all choices is told at once."""

from topology.core.admission import Kubelet, opaque
from topology.core.availability import Availability
from topology.core.devicesets import total
from topology.core.placement.constraints import always_met
from topology.core.requests import Constraints, Counts, Role


def indifferent_to(
    kubelet: Kubelet, now: Availability, counts: Counts, constraints: Constraints
) -> Kubelet | None:
    """The same node as if any devices might come, for a pod to which that makes no difference.

    Such a pod has one container, with one device or with several GPUs of which any will do. The
    plugin never refuses it (:meth:`.Allocator.never_refuses`), so it is admitted wherever enough
    devices are free. Its outcomes can only become more. None for other pods, and if the node is so
    already or the Topology Manager has a say.
    """
    if len(counts) != 1 or kubelet.monotone or kubelet.aligns:
        return None
    ((role, count),) = counts
    if role is Role.INIT:
        return None
    sizes = None
    if count > 1:
        # If some sets are no good to the pod the wider question would mostly be asked for nothing.
        if not kubelet.answers_at_once or kubelet.refuses_several is not False:
            return None
        if not always_met(kubelet.shape, constraints):
            return None
        sizes = pool_sizes(kubelet, now)
    return opaque(kubelet) if kubelet.allocator.never_refuses(kubelet.shape, count, sizes) else None


def pool_sizes(kubelet: Kubelet, now: Availability) -> frozenset[int]:
    """How many devices may be free when one more pod comes: every number, or more than that.

    Each pod that holds devices may have ended by then, each pod that is to come may have come, and
    every victim is gone. It is any number if pods hide devices, or one is in the middle of
    its admission.
    """
    most = kubelet.devices_on(kubelet.shape.all_gpus)
    unsure = now.gone or now.hidden or now.withheld
    if unsure or any(pod.started or pod.shown or pod.opaque for pod in now.unacknowledged):
        return frozenset(range(most + 1))
    reached = 1 << total(now.after_victims.free, now.width)  # a bit for each number
    for holder in (*now.running, *now.releasing):
        reached |= reached << total(holder.shown, now.width)
    for pod in now.unacknowledged:
        before, asked = reached, sum(count for _, count in pod.counts)
        # Containers may share devices with others of the pod that have ended.
        for taken in range(1 if len(pod.counts) > 1 else asked, asked + 1):
            reached |= before >> taken
    return frozenset(n for n in range(most + 1) if reached >> n & 1)
