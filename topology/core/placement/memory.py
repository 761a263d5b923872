"""Memory of shared GPUs: check that the pods on one GPU never use more memory than it has.

A pod may declare how much memory it will use on each GPU that it gets (``gpu-memory``). A pod that
declares nothing uses its shares' part of the memory. The device plugin counts shares and does not
know memory, so only this rule keeps the sum within a GPU's memory. The rule holds for every pod,
also for plain ones, because a plain pod may get a share beside a pod that was promised its memory.

Outcomes count devices and do not say which pod holds which. So each GPU is checked alone: any of
its holders may end, and every pod that is bound but unacknowledged may come, if it can. The
allocator determines how many shares of a GPU a pod may get:

* An allocator that *spreads* takes a share of the GPU with the most shares left, again and again.
  It takes one of a GPU with ``left`` shares only when no other GPU has more. Before that it has to
  pick all shares that the other GPUs have above ``left``. Unacknowledged pods may do some of these
  picks. Pods that end can only increase their number. Under a policy of the Topology Manager the
  plugin chooses among the GPUs of some NUMA nodes. So of the other GPUs at least those on the GPU's
  own NUMA node count.
* All other allocators may take any free share, because pods that end decide which GPU has the
  fewest shares left.

The result is an upper bound, so a placement that it allows is sound: no order of endings and
admissions leads to a sum above a GPU's memory. ``tests/property/test_memory.py`` plays all orders
on small nodes.

Amounts are bytes times the replicas of a GPU, so that a share's part is a whole number.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from topology.core.admission import DeviceManager, provider_answers
from topology.core.admission.hintproviders import NO_ANSWERS
from topology.core.availability import ALL_MEMORY, Availability, Holder, Unacknowledged, coming
from topology.core.devices import Bytes, Mask
from topology.core.devicesets import DeviceSet, count, gpus
from topology.core.memo import interruptible
from topology.core.placement.rejections import IN_PROGRESS, Reason, Rejection
from topology.core.requests import GpuRequest, memory_text

NOT_ALONE = Rejection(
    "the pod may get a share of a GPU that is promised to another pod alone (sharing=exclusive)",
    True,
    Reason.MEMORY_IN_USE,
)
Amount = int  # bytes times replicas


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of one GPU."""

    used: Bytes  # the memory that its holders use, as they declare
    memory: Bytes  # the GPU's total


def used_memory(kubelet: DeviceManager, availability: Availability) -> tuple[GpuMemory, ...]:
    """Return the memory that reported pods use on each GPU, by position."""
    replicas = kubelet.replicas
    return tuple(
        GpuMemory(
            Bytes(-(-sum(tenant.amount for tenant in tenants) // replicas)),
            kubelet.shape.memory[p],
        )
        for p, tenants in enumerate(_tenants(kubelet, availability))
    )


def short_of_memory(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest
) -> Rejection | None:
    """Return why the pod may not come: on some GPU, pods could use more memory than there is.

    None if they cannot. If only unacknowledged pods could, the next report may clear them. Then the
    rejection says that a placement is in progress.
    """
    declared = request.constraints.gpu_memory
    if kubelet.replicas == 1 or not (declared or availability.declares):
        return None  # the shares' parts together are no more than the GPU
    # None of the new pod's containers has devices yet. So it can be followed exactly, also if it
    # has init containers.
    newcomer = replace(coming(request, kubelet.replicas), opaque=False)
    availability = _after_victims(availability)
    if not _blamed(kubelet, availability, newcomer):
        return None
    started = tuple(pod for pod in availability.unacknowledged if pod.started)
    reported = replace(availability, unacknowledged=started)
    if len(started) < len(availability.unacknowledged) and not _blamed(kubelet, reported, newcomer):
        return IN_PROGRESS
    running, releasing = (
        tuple(holder for holder in holders if holder.memory != ALL_MEMORY)
        for holders in (availability.running, availability.releasing)
    )
    sharing = replace(availability, running=running, releasing=releasing)
    if not _blamed(kubelet, sharing, newcomer):
        return NOT_ALONE
    some = memory_text(declared) if declared else "the pod's shares"
    return Rejection(
        f"a GPU that the pod may get has too little memory left for {some}",
        True,
        Reason.MEMORY_IN_USE,
    )


def _after_victims(availability: Availability) -> Availability:
    """Return the same after every victim is gone. Unacknowledged pods may then get any share.

    They may have come before, when other GPUs had the most shares left.
    """
    if availability.after_victims is availability and not any(
        pod.terminated for pod in availability.unacknowledged
    ):
        return availability
    unacknowledged = tuple(
        replace(pod, opaque=True) for pod in availability.after_victims.unacknowledged
    )
    return replace(availability.after_victims, unacknowledged=unacknowledged)


def has_memory(kubelet: DeviceManager, availability: Availability, request: GpuRequest) -> bool:
    """Check whether some GPU with a free share has memory for the pod.

    The check takes the last report, as if every victim were gone.
    """
    availability = availability.after_victims
    declared = request.constraints.gpu_memory
    replicas, memory = kubelet.replicas, kubelet.shape.memory
    return any(
        count(availability.free, p, kubelet.width)
        and sum(tenant.amount for tenant in tenants)
        + (declared * replicas if declared else memory[p])
        <= memory[p] * replicas
        for p, tenants in enumerate(_tenants(kubelet, availability))
    )


def _blamed(kubelet: DeviceManager, availability: Availability, newcomer: Unacknowledged) -> Mask:
    """Return the GPUs whose memory may be exceeded because of the new pod.

    Either it may get a share there, or other pods may get one there only if the new pod comes
    first.
    """
    with_it = replace(availability, unacknowledged=(*availability.unacknowledged, newcomer))
    over, reached = _exceeded(kubelet, with_it)
    if over & ~reached:
        over &= reached | ~_exceeded(kubelet, availability)[0]
    return over


@dataclass(frozen=True, slots=True)
class _Tenant:
    """A pod on one GPU."""

    devices: int  # the devices that it has there
    amount: Amount  # the memory that it uses there


@dataclass(frozen=True, slots=True)
class _Incoming:
    """An unacknowledged pod that may still be admitted."""

    devices: int
    memory: int  # bytes on each GPU; 0 for its shares' part
    others: int  # devices that other pods may take before it is admitted
    anywhere: bool  # whether it may get any free share
    on: Mask = 0  # GPUs on which its memory is already counted

    def most(self, above: Sequence[int], own: int, left: int) -> int:
        """Return the largest number of devices that the pod may get on a GPU that has ``left``.

        ``above[n]`` is the number of free devices above ``n`` on each of the GPUs that the plugin
        surely chooses among, all GPUs together. This GPU has ``own`` free devices.
        """
        if self.anywhere:
            return min(self.devices, left)
        got = 0
        while got < min(self.devices, left):
            level = left - got
            picks_before = above[level] - max(0, own - level) - self.others
            if picks_before > self.devices - got - 1:
                break
            got += 1
        return got


def _exceeded(kubelet: DeviceManager, availability: Availability) -> tuple[Mask, Mask]:
    """Return the GPUs whose memory may be exceeded, and those that the last unacknowledged pod may
    reach."""
    width, replicas, memory = kubelet.width, kubelet.replicas, kubelet.shape.memory
    free = [count(availability.free, p, width) for p in range(kubelet.shape.size)]
    among = kubelet.shape.topology_nodes if kubelet.aligns else ((),) * kubelet.shape.size
    above = {
        at: [
            sum(max(0, n - level) for n, there in zip(free, among, strict=True) if there == at)
            for level in range(replicas + 1)
        ]
        for at in among
    }
    incoming = _incoming(kubelet, availability)
    hiding = [
        holder for holder in (*availability.running, *availability.releasing) if holder.hidden
    ]
    hidden = [_hidden(hiding, p, kubelet, availability) for p in range(kubelet.shape.size)]
    over = reached = 0
    for p, tenants in enumerate(_tenants(kubelet, availability)):
        interruptible()
        used = sum(tenant.amount for tenant in tenants)
        for released, less in _least_released(tenants).items():
            left = min(free[p] + released, replicas)
            parts: list[Amount] = []
            lands = False
            for n, pod in enumerate(incoming, 1):
                got = pod.most(above[among[p]], free[p], left)
                if got and n == len(incoming):
                    reached |= 1 << p
                lands |= got > 0
                if not pod.memory:
                    parts += [memory[p]] * got
                elif got and not pod.on >> p & 1:
                    parts.append(pod.memory * replicas)
            # At most `left` parts fit on the GPU. One of them is of a pod that comes.
            first = max(parts, default=0)
            rest = [*parts, *hidden[p]]
            if first:
                rest.remove(first)
            rest.sort(reverse=True)
            most = first + sum(rest[: left - 1])
            if lands and used - less + most > memory[p] * replicas:
                over |= 1 << p
    return over, reached


def _incoming(kubelet: DeviceManager, availability: Availability) -> list[_Incoming]:
    """Return the unacknowledged pods, in order.

    Terminated pods are left out. They only count as pods that may come before others.
    """
    held_by_all = sum(pod.held for pod in availability.unacknowledged) + availability.hidden
    return [
        _Incoming(
            pod.held,
            pod.memory,
            held_by_all - pod.held,
            anywhere=pod.opaque or not _followed(kubelet, pod),
            on=gpus(pod.shown, kubelet.width),
        )
        for pod in availability.unacknowledged
        if not pod.terminated
    ]


def _followed(kubelet: DeviceManager, pod: Unacknowledged) -> bool:
    """Check whether each share that the pod gets is of the GPU with the most shares left.

    That is the most of all GPUs or, under the Topology Manager, of all GPUs on some NUMA nodes.
    There no other provider may give hints: if only GPUs are asked for, the hinted NUMA nodes have
    at least as many devices as the container lacks.
    """
    if not kubelet.allocator.spreads or not kubelet.aligns:
        return kubelet.allocator.spreads
    placed = all(len(nodes) == 1 for nodes in kubelet.shape.topology_nodes)
    answers = provider_answers(
        kubelet, None, pod.counts, only_gpu_plugin=pod.only_gpu_plugin, exclusive=pod.exclusive
    )
    return placed and kubelet.config.sees_topology and answers is NO_ANSWERS


def _hidden(
    hiding: Iterable[Holder], p: int, kubelet: DeviceManager, availability: Availability
) -> list[Amount]:
    """Return the memory that pods may use on a GPU by devices that no report shows, part by part.

    Such devices seem free, or are withheld.
    """
    there = count(availability.free, p, kubelet.width) + count(
        availability.withheld, p, kubelet.width
    )
    parts: list[Amount] = []
    for holder in hiding:
        if not holder.memory:
            parts += [kubelet.shape.memory[p]] * min(holder.hidden, there)
        elif not count(holder.shown + holder.kept, p, kubelet.width):
            parts.append(holder.memory * kubelet.replicas)
    return sorted(parts, reverse=True)[:there]


def _tenants(kubelet: DeviceManager, availability: Availability) -> list[list[_Tenant]]:
    """Return the pods on each GPU, by position. Any of them may end.

    Devices that the kubelet does not hand out now count as their shares' part, whichever pod holds
    them.
    """
    width, replicas, memory = kubelet.width, kubelet.replicas, kubelet.shape.memory
    holders = [*availability.running, *availability.releasing]
    holders += [
        Holder(pod.shown, 0, pod.memory) for pod in availability.unacknowledged if pod.shown
    ]
    by_gpu: list[list[_Tenant]] = [[] for _ in memory]
    kept = [0] * len(memory)
    for holder in holders:
        for p, devices in _fields(holder.shown, width):
            used = _used(holder, memory[p])
            amount = used * replicas if used else devices * memory[p]
            by_gpu[p].append(_Tenant(devices, amount))
        for p, devices in _fields(holder.kept, width):
            kept[p] += devices
            if not count(holder.shown, p, width):
                by_gpu[p].append(_Tenant(0, _used(holder, memory[p]) * replicas))
    for p, devices in _fields(availability.withheld, width):
        by_gpu[p] += [_Tenant(1, memory[p])] * (devices - kept[p])
    return by_gpu


def _used(holder: Holder, memory: Bytes) -> Bytes:
    """Return the bytes that a pod declares on a GPU that has ``memory``."""
    return memory if holder.memory == ALL_MEMORY else Bytes(holder.memory)


def _fields(pool: DeviceSet, width: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of which a device set has devices, each with their number."""
    field = (1 << width) - 1
    while pool:
        p = ((pool & -pool).bit_length() - 1) // width
        devices = pool >> p * width & field
        yield p, devices
        pool -= devices << p * width


def _least_released(tenants: Iterable[_Tenant]) -> dict[int, Amount]:
    """Return the least memory that comes free with exactly so many devices, if some pods end."""
    least = {0: 0}
    for tenant in tenants:
        for devices, amount in list(least.items()):
            after, more = devices + tenant.devices, amount + tenant.amount
            least[after] = min(more, least.get(after, more))
    return least
