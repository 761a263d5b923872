"""What a node would be with pods on it that have not come yet.

An *arrival* is a pod that may come to a node: a peer in a gang, or a member that a group still
waits for. It is counted like an assumed pod and follows the same rules: the kubelet may admit it
before another pod, after it, or not at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import mul

from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import PodUid
from topology.core.placement import Rejection
from topology.core.requests import NO_CONSTRAINTS, Constraints, GpuRequest

# The largest number of sets of peers that are tried if the peers have different requests.
MOST_WAYS = 16


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Some pods with the same request, and what each of them is promised."""

    request: GpuRequest
    count: int
    promised: Constraints = NO_CONSTRAINTS
    survives_endings: bool = False

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes; several memos share it."""
        return 200 + self.request.shared_bytes


def with_arrivals(info: NodeInfo, arrivals: Iterable[Arrivals]) -> NodeInfo:
    """Return the node as if these pods were bound to it and still unacknowledged."""
    assumed = dict(info.pods.assumed)
    for each in arrivals:
        for _ in range(each.count):
            uid = PodUid(f"arrival {len(assumed)}")
            assumed[uid] = PodRecord(
                uid=uid,
                namespace="",
                name=uid,
                node=info.name,
                request=each.request,
                promised=each.promised,
                survives_endings=each.survives_endings,
            )
    return replace(info, pods=replace(info.pods, assumed=assumed))


def with_peers(info: NodeInfo, request: GpuRequest) -> list[NodeInfo]:
    """Return the node as if peers had come first, once for each largest set of peers that may come.

    The list is empty if there are not enough devices for any peer. A set may come if kube-scheduler
    still counts enough devices for the pod after it. kube-scheduler counts the devices of a
    terminating pod as free, maybe long before a report shows that. It also counts some other
    devices as free until the node's status says otherwise (:meth:`.NodeInfo.overcounted`). If our
    own count leaves devices for fewer peers, the pod does not fit, because kube-scheduler would
    send all of those peers.

    A promise over the returned nodes also holds with fewer peers: the kubelet may admit any part of
    the unacknowledged pods before the pod. Peers are promised what they require, so that the pod is
    refused where it could break that. Peers that ask for another resource take nothing from the
    pod, and are left out. At most :data:`MOST_WAYS` nodes are returned.
    """
    kinds = [(request.without_peers, request.peers), *request.others]
    kinds = [
        (each, most)
        for each, most in kinds
        if most and each.effective_count and each.resource == request.resource
    ]
    room = _room(info, request) if kinds else 0
    sizes = [each.effective_count for each, _ in kinds]
    ways = islice(_ways(sizes, [most for _, most in kinds], room), MOST_WAYS)
    return [
        with_arrivals(
            info,
            [
                Arrivals(each, n, each.promised)
                for (each, _), n in zip(kinds, way, strict=True)
                if n
            ],
        )
        for way in ways
        if any(way)
    ]


def _ways(sizes: Sequence[int], most: Sequence[int], room: int) -> Iterator[tuple[int, ...]]:
    """Yield how many of each size fit into a number of devices together, so that nothing more fits.

    >>> list(_ways([2, 1], [4, 1], 5))
    [(2, 1)]
    >>> list(_ways([3, 2], [9, 9], 6))
    [(2, 0), (1, 1), (0, 3)]
    """
    if not sizes:
        yield ()
        return
    top = min(most[0], room // sizes[0])
    others = sum(min(size * n, room) for size, n in zip(sizes[1:], most[1:], strict=True))
    least = (room - others) // sizes[0]  # with fewer, devices would be left
    for n in range(top, min(top, max(0, least)) - 1, -1):
        for rest in _ways(sizes[1:], most[1:], room - n * sizes[0]):
            left = room - n * sizes[0] - sum(map(mul, sizes[1:], rest))
            if n == most[0] or left < sizes[0]:
                yield (n, *rest)


def _room(info: NodeInfo, request: GpuRequest) -> int:
    """Return the devices that kube-scheduler may give to peers before it sends this pod last."""
    each = request.effective_count
    offer = info.last_offer(request.resource)
    if info.report is None or isinstance(offer, Rejection) or not each:
        return 0
    left = offer.availability.devices_left + offer.availability.devices_terminating
    return max(0, left + info.overcounted(request.resource) - each)
