"""Find pods for which any devices will do, so that their outcomes need not be listed."""

from topology.core.admission import DeviceManager, opaque
from topology.core.availability import Availability
from topology.core.devicesets import total
from topology.core.placement.constraints import always_met
from topology.core.requests import Constraints, Counts, Role


def indifferent_to(
    kubelet: DeviceManager, availability: Availability, counts: Counts, constraints: Constraints
) -> DeviceManager | None:
    """Return the same node as if any devices might come, if that makes no difference to the pod.

    Such a pod has one container, which asks for one device, or for several GPUs of which any will
    do. The plugin never refuses it (:meth:`.Allocator.never_refuses`). So it is admitted on any
    node with enough free devices, and the returned node can only have more outcomes. None for other
    pods, for a node where any devices may come already, and if the Topology Manager has an effect.
    """
    if len(counts) != 1 or kubelet.monotone or kubelet.aligns:
        return None
    ((role, count),) = counts
    if role is Role.INIT:
        return None
    sizes = None
    if count > 1:
        # If some sets do not meet the constraints, the evaluation of any devices mostly fails.
        if not kubelet.answers_at_once or kubelet.refuses_several is not False:
            return None
        if not always_met(kubelet.shape, constraints):
            return None
        sizes = pool_sizes(kubelet, availability)
    return opaque(kubelet) if kubelet.allocator.never_refuses(kubelet.shape, count, sizes) else None


def pool_sizes(kubelet: DeviceManager, availability: Availability) -> frozenset[int]:
    """Return the numbers of devices that may be free when one more pod comes, or more numbers.

    Each pod that holds devices may have ended by then. Each pod that is to come may have come.
    Every victim is gone. The result has every number if pods hide devices, if devices are gone or
    withheld, or if a pod is opaque or in the middle of its admission.
    """
    most = kubelet.devices_on(kubelet.shape.all_gpus)
    unsure = availability.gone or availability.hidden or availability.withheld
    if unsure or any(pod.started or pod.shown or pod.opaque for pod in availability.unacknowledged):
        return frozenset(range(most + 1))
    reached = 1 << total(
        availability.after_victims.free, availability.width
    )  # bit *n*: *n* devices may be free
    for holder in (*availability.running, *availability.releasing):
        reached |= reached << total(holder.shown, availability.width)
    for pod in availability.unacknowledged:
        before, asked = reached, sum(count for _, count in pod.counts)
        # Containers may share devices with others of the pod that have ended.
        for taken in range(1 if len(pod.counts) > 1 else asked, asked + 1):
            reached |= before >> taken
    return frozenset(n for n in range(most + 1) if reached >> n & 1)
