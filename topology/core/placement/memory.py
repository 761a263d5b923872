"""Memory of shared GPUs: may the pods on one GPU come to use more than it has?

A pod may say how much memory it will use on each GPU that it gets (``gpu-memory``); one that says
nothing uses its shares' part. The device plugin counts shares and knows no memory, so nothing but
this rule keeps the sum below what a GPU has. It holds for every pod, plain ones too: a plain pod
may land beside one that was told that its memory is there.

Outcomes speak of counts, not of who holds what. So the question is put GPU by GPU: let any of its
holders end, and let every pod that is on its way here come if it can. What a pod may get on a GPU
follows from the allocator:

* One that *spreads* takes a share of the GPU with the most shares left, again and again. A GPU with
  ``left`` shares has its turn only once all others have no more than that. That takes as many picks
  as the others have shares above ``left``. Pods on their way may do some of these picks; pods that
  end only make it more. Under a policy of the Topology Manager it chooses among the GPUs of some
  NUMA nodes, so of the others at least those of the GPU's own node count.
* All others may take any share that is free: pods that end decide which GPU has the fewest left.

That is an upper bound, so what it allows is sound: no order of endings and admissions leads to a
sum above a GPU's memory. ``tests/property/test_memory.py`` plays them all on small nodes.

Amounts are bytes times the replicas of a GPU, so that a share's part is a whole number.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from topology.core.admission import Kubelet, provider_answers
from topology.core.admission.hintproviders import NO_ANSWERS
from topology.core.availability import ALL_MEMORY, Availability, Holder, Unacknowledged, coming
from topology.core.devices import Bytes, Mask
from topology.core.devicesets import DeviceSet, count, gpus
from topology.core.memo import interruptible
from topology.core.placement.rejections import IN_PROGRESS, Reason, Rejection
from topology.core.requests import GpuRequest, memory_text

NOT_ALONE = Rejection(
    "the pod may get a share of a GPU that was promised to another one alone (sharing: exclusive)",
    True,
    Reason.MEMORY_IN_USE,
)
Amount = int  # bytes times replicas


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of one GPU."""

    used: Bytes  # by its holders, as they say
    memory: Bytes  # what there is


def used_memory(kubelet: Kubelet, now: Availability) -> tuple[GpuMemory, ...]:
    """What the pods on each GPU use, by position: those that a report shows."""
    replicas = kubelet.replicas
    return tuple(
        GpuMemory(
            Bytes(-(-sum(tenant.amount for tenant in tenants) // replicas)),
            kubelet.shape.memory[p],
        )
        for p, tenants in enumerate(_tenants(kubelet, now))
    )


def short_of_memory(kubelet: Kubelet, now: Availability, request: GpuRequest) -> Rejection | None:
    """Why the pod may not come: on some GPU, pods could use more memory than there is.

    None if they cannot. If only pods that no report shows yet could, the next report may tell: then
    the placement waits.
    """
    declared = request.constraints.gpu_memory
    if kubelet.replicas == 1 or not (declared or now.declares):
        return None  # all parts together are no more than the whole
    # None of its containers has devices, so that it is followed, with init containers, too.
    newcomer = replace(coming(request, kubelet.replicas), opaque=False)
    now = _after_victims(now)
    if not _blamed(kubelet, now, newcomer):
        return None
    started = tuple(pod for pod in now.unacknowledged if pod.started)
    reported = replace(now, unacknowledged=started)
    if len(started) < len(now.unacknowledged) and not _blamed(kubelet, reported, newcomer):
        return IN_PROGRESS
    running, releasing = (
        tuple(holder for holder in holders if holder.memory != ALL_MEMORY)
        for holders in (now.running, now.releasing)
    )
    sharing = replace(now, running=running, releasing=releasing)
    if not _blamed(kubelet, sharing, newcomer):
        return NOT_ALONE
    some = memory_text(declared) if declared else "the pod's shares"
    words = f"too little GPU memory is left for {some} on a GPU that may come"
    return Rejection(words, True, Reason.MEMORY_IN_USE)


def _after_victims(now: Availability) -> Availability:
    """The same after every victim is gone. Pods that come before that may be anywhere: other
    GPUs had the most shares left."""
    if now.after_victims is now and not any(pod.terminated for pod in now.unacknowledged):
        return now
    unacknowledged = tuple(replace(pod, opaque=True) for pod in now.after_victims.unacknowledged)
    return replace(now.after_victims, unacknowledged=unacknowledged)


def has_memory(kubelet: Kubelet, now: Availability, request: GpuRequest) -> bool:
    """Whether some GPU with a free share has memory for the pod, by the last report and after every
    victim is gone."""
    now = now.after_victims
    declared = request.constraints.gpu_memory
    replicas, memory = kubelet.replicas, kubelet.shape.memory
    return any(
        count(now.free, p, kubelet.width)
        and sum(tenant.amount for tenant in tenants)
        + (declared * replicas if declared else memory[p])
        <= memory[p] * replicas
        for p, tenants in enumerate(_tenants(kubelet, now))
    )


def _blamed(kubelet: Kubelet, now: Availability, newcomer: Unacknowledged) -> Mask:
    """The GPUs whose memory may be exceeded because of the newcomer.

    It may land there, or others may land there only if it comes first.
    """
    with_it = replace(now, unacknowledged=(*now.unacknowledged, newcomer))
    over, reached = _exceeded(kubelet, with_it)
    if over & ~reached:
        over &= reached | ~_exceeded(kubelet, now)[0]
    return over


@dataclass(frozen=True, slots=True)
class _Tenant:
    """A pod on one GPU."""

    devices: int  # how many it has there
    amount: Amount  # the memory that it uses there


@dataclass(frozen=True, slots=True)
class _Incoming:
    """A pod on its way here."""

    devices: int
    memory: int  # bytes on each GPU; 0: its shares' part
    others: int  # devices that may be taken before it is admitted
    anywhere: bool  # whether it may get any share that is free
    on: Mask = 0  # GPUs on which its memory is counted already

    def most(self, above: Sequence[int], own: int, left: int) -> int:
        """How many devices it may get on a GPU that has ``left``.

        ``above[n]`` are the free devices above ``n`` on each GPU that it is surely chosen among;
        this one has ``own``.
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


def _exceeded(kubelet: Kubelet, now: Availability) -> tuple[Mask, Mask]:
    """The GPUs whose memory may be exceeded, and those that the last unacknowledged pod may
    reach."""
    width, replicas, memory = kubelet.width, kubelet.replicas, kubelet.shape.memory
    free = [count(now.free, p, width) for p in range(kubelet.shape.size)]
    among = kubelet.shape.topology_nodes if kubelet.aligns else ((),) * kubelet.shape.size
    above = {
        at: [
            sum(max(0, n - level) for n, there in zip(free, among, strict=True) if there == at)
            for level in range(replicas + 1)
        ]
        for at in among
    }
    incoming = _incoming(kubelet, now)
    hiding = [holder for holder in (*now.running, *now.releasing) if holder.hidden]
    hidden = [_hidden(hiding, p, kubelet, now) for p in range(kubelet.shape.size)]
    over = reached = 0
    for p, tenants in enumerate(_tenants(kubelet, now)):
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
            # No more pods than devices are left, and one of them is one that comes.
            first = max(parts, default=0)
            rest = [*parts, *hidden[p]]
            if first:
                rest.remove(first)
            rest.sort(reverse=True)
            most = first + sum(rest[: left - 1])
            if lands and used - less + most > memory[p] * replicas:
                over |= 1 << p
    return over, reached


def _incoming(kubelet: Kubelet, now: Availability) -> list[_Incoming]:
    """The unacknowledged pods, in order. Departed ones only come before others."""
    everybody = sum(pod.held for pod in now.unacknowledged) + now.hidden
    return [
        _Incoming(
            pod.held,
            pod.memory,
            everybody - pod.held,
            anywhere=pod.opaque or not _followed(kubelet, pod),
            on=gpus(pod.shown, kubelet.width),
        )
        for pod in now.unacknowledged
        if not pod.terminated
    ]


def _followed(kubelet: Kubelet, pod: Unacknowledged) -> bool:
    """Whether each share that the pod gets is of the GPU with the most left: of all, or under the
    Topology Manager of all on some NUMA nodes. There nobody else may hint: a set of NUMA nodes that
    GPUs alone ask for has as many as the container lacks."""
    if not kubelet.allocator.spreads or not kubelet.aligns:
        return kubelet.allocator.spreads
    placed = all(len(nodes) == 1 for nodes in kubelet.shape.topology_nodes)
    answers = provider_answers(
        kubelet, None, pod.counts, only_gpu_plugin=pod.only_gpu_plugin, exclusive=pod.exclusive
    )
    return placed and kubelet.config.sees_topology and answers is NO_ANSWERS


def _hidden(hiding: Iterable[Holder], p: int, kubelet: Kubelet, now: Availability) -> list[Amount]:
    """What pods may use on a GPU by devices that no report shows, part by part: those that seem
    free, or are handed out no more."""
    there = count(now.free, p, kubelet.width) + count(now.withheld, p, kubelet.width)
    parts: list[Amount] = []
    for holder in hiding:
        if not holder.memory:
            parts += [kubelet.shape.memory[p]] * min(holder.hidden, there)
        elif not count(holder.shown + holder.kept, p, kubelet.width):
            parts.append(holder.memory * kubelet.replicas)
    return sorted(parts, reverse=True)[:there]


def _tenants(kubelet: Kubelet, now: Availability) -> list[list[_Tenant]]:
    """Who is on each GPU, by position; any of them may end.

    Devices that the kubelet does not hand out now count as their shares' part, whoever has them.
    """
    width, replicas, memory = kubelet.width, kubelet.replicas, kubelet.shape.memory
    holders = [*now.running, *now.releasing]
    holders += [Holder(pod.shown, 0, pod.memory) for pod in now.unacknowledged if pod.shown]
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
    for p, devices in _fields(now.withheld, width):
        by_gpu[p] += [_Tenant(1, memory[p])] * (devices - kept[p])
    return by_gpu


def _used(holder: Holder, memory: Bytes) -> Bytes:
    """The bytes that a pod says it uses on a GPU that has ``memory``."""
    return memory if holder.memory == ALL_MEMORY else Bytes(holder.memory)


def _fields(pool: DeviceSet, width: int) -> Iterator[tuple[int, int]]:
    """The positions of which a pool has devices, each with how many."""
    field = (1 << width) - 1
    while pool:
        p = ((pool & -pool).bit_length() - 1) // width
        devices = pool >> p * width & field
        yield p, devices
        pool -= devices << p * width


def _least_released(tenants: Iterable[_Tenant]) -> dict[int, Amount]:
    """The least memory that comes free with exactly so many devices, if some of them end."""
    least = {0: 0}
    for tenant in tenants:
        for devices, amount in list(least.items()):
            after, more = devices + tenant.devices, amount + tenant.amount
            least[after] = min(more, least.get(after, more))
    return least
