"""A pod as a member of its group: what it asks for, with the siblings that may come before it.

What siblings ask for is known of those that we have seen waiting. The others count as if they asked
what the member asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_extender.groupreference import NVLINK_DOMAIN, GroupReference
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.groupreservations import devices_left
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest, Policy

COUNTED_PEERS = 8
"""Siblings that are counted one by one. More, or an unknown number, count as all that a node has
room for: then the answers do not change with every member that is bound."""
OTHER_KINDS = 4
"""So many other requests of siblings are told apart, beside the member's own."""
ALL_PEERS = 1024
SMALLEST = 2
"""Fewest nodes of a rack: a single machine may report an NVLink domain of its own."""


@dataclass(frozen=True, slots=True)
class Member:
    """A pod that belongs to a group, and what it asks; the request names its siblings."""

    uid: PodUid
    group_ref: GroupReference
    request: GpuRequest
    alone: bool = False  # it alone needs a place, and none of the members that come after it

    @property
    def minds_groups(self) -> bool:
        """Whether it may go nowhere but to its group's domain, or keeps off what other groups wait
        for. What only prefers a domain, or is in no gang and names none, goes anywhere."""
        shares = self.group_ref.domain is not None or self.group_ref.gang
        return shares and self.request.policy is Policy.REQUIRED

    def is_begun(self, snapshot: Snapshot) -> bool:
        """Whether another member of the group is bound and lives, or its bind is in flight, or
        devices have been chosen for it (DRA)."""
        return bool(snapshot.group_status(self.group_ref, self.uid).living)


def rack_rooms(
    snapshot: Snapshot,
    request: GpuRequest,
    names: Sequence[str],
    group_ref: GroupReference | None = None,
) -> list[int] | None:
    """How much is left of the rack of each node, 0 for a node in none.

    A pod that needs no rack had better go where it breaks into none, and else into the fullest one,
    so that whole racks stay whole for the groups that need them. It matters from the moment that
    some group's pods ask for one: in a cluster without such groups a tray is a node like any other.

    None where that makes no difference: the pod's own group asks for a rack, nobody has asked for
    one, or there is none. Nodes that were given other facts count as they are.
    """
    snapshot = snapshot.base or snapshot
    for_a_rack = group_ref is not None and group_ref.domain == NVLINK_DOMAIN
    domains = None if for_a_rack or not snapshot.racks_wanted else snapshot.domains(NVLINK_DOMAIN)
    if domains is None or not domains.of:
        return None
    racks = list(map(domains.of.get, names))
    wanted = {rack for rack in racks if rack is not None}
    rooms = snapshot.answers.sums(
        request.resource, NVLINK_DOMAIN, wanted, domains.of, snapshot.generation
    )
    trays = {rack: domains.nodes[rack] for rack in wanted - rooms.keys()}
    new = {
        rack: _room_of([snapshot.node_info(name) for name in names], request.resource)
        for rack, names in trays.items()
    }
    snapshot.answers.put_sums(request.resource, NVLINK_DOMAIN, new, trays, snapshot.generation)
    rooms |= new
    return [rooms.get(rack or "", 0) for rack in racks] if any(rooms.values()) else None


def _room_of(trays: Sequence[NodeInfo], resource: str) -> int:
    """One more than the devices that are left on a rack's nodes; 0 where they are no rack."""
    if len(trays) < SMALLEST:
        return 0
    return 1 + sum(devices_left(info, resource) for info in trays if not info.node_object.cordoned)


def member_of(
    snapshot: Snapshot, uid: PodUid, group_ref: GroupReference | None, request: GpuRequest
) -> Member | None:
    """The pod as a member of its group, with the siblings that may come before it now; None if it
    is in no group."""
    if group_ref is None:
        return None
    request = request.alone
    if group_ref.gang:
        others = _other_peers(snapshot, uid, group_ref, request)
        known = sum(count for _, count in others)
        request = replace(
            request,
            peers=_peers(snapshot, uid, group_ref, known),
            others=tuple((each, _counted(count)) for each, count in others),
        )
    return Member(uid, group_ref, request)


def _peers(snapshot: Snapshot, uid: PodUid, group_ref: GroupReference, others: int) -> int:
    """The siblings that ask the same, as far as nobody knows better."""
    if group_ref.size is None or not group_ref.peers_counted:
        return ALL_PEERS
    come = snapshot.group_status(group_ref, uid).have_come(group_ref.size)
    left = group_ref.size - come - 1 - others
    return _counted(max(0, left))


def _counted(peers: int) -> int:
    return peers if peers <= COUNTED_PEERS else ALL_PEERS


def _other_peers(
    snapshot: Snapshot, uid: PodUid, group_ref: GroupReference, request: GpuRequest
) -> list[tuple[GpuRequest, int]]:
    """The siblings that we know to wait and to ask for something else, by what they ask: those that
    ask for most, where that is too many kinds."""
    members = snapshot.groups.members.get(group_ref.group)
    if members is None:
        return []
    pod = snapshot.waiting.get(uid)
    own = pod is not None and pod.gang == group_ref.group and uid not in members.pods
    counted = (
        pod.request if own and pod is not None and not (pod.ended or pod.terminating) else None
    )
    but = counted if isinstance(counted, GpuRequest) else None
    return members.expected(but, request.alone, OTHER_KINDS)
