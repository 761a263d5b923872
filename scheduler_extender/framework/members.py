"""A pod as a member of its group: its request, with the peers that may come before it.

The requests of peers that have been seen waiting are known. Every other peer counts as if its
request was the member's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_extender.groupreference import NVLINK_DOMAIN, GroupReference
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.groupreservations import devices_left
from scheduler_extender.state.groups.groups import MOST_REQUESTS, Requests
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest, Policy

# The largest number of peers that is counted exactly. A larger or unknown number counts as all
# peers that a node can hold: then the answers do not change with every member that is bound.
COUNTED_PEERS = 8
# The number of different requests of peers that are told apart, beside the member's own.
OTHER_KINDS = 4
ALL_PEERS = 1024
SMALLEST = 2  # the fewest nodes of a rack: a single machine may report an NVLink domain of its own


@dataclass(frozen=True, slots=True)
class Member:
    """A pod that belongs to a group, and its request, which includes its peers."""

    uid: PodUid
    group_ref: GroupReference
    request: GpuRequest
    as_single_pod: bool = False  # only this pod is placed, not the members after it
    others: Requests = ()  # the other members that wait and have another request
    tolerates_cordon: bool = False  # it may go to a cordoned node, and so may the others

    @property
    def minds_groups(self) -> bool:
        """Whether it may go only to its group's domain, or must respect other groups' reservations.

        A pod that only prefers a domain may go to any node, and so may a pod that is in no gang and
        names no domain.
        """
        shares = self.group_ref.domain is not None or self.group_ref.gang
        return shares and self.request.policy is Policy.REQUIRED

    def is_begun(self, snapshot: Snapshot) -> bool:
        """Check whether the group has another living member.

        A living member is bound or assumed, or devices have been chosen for it (DRA).
        """
        return bool(snapshot.group_status(self.group_ref, self.uid).living)


def rack_rooms(
    snapshot: Snapshot,
    request: GpuRequest,
    names: Sequence[str],
    group_ref: GroupReference | None = None,
) -> list[int] | None:
    """Return one more than the devices left in the rack of each node; 0 for a node in no rack.

    A pod that needs no rack had better go where it breaks into no rack. The second best is the
    fullest rack. So whole racks stay whole for the groups that need them. This matters only after
    some group's pods have asked for a rack: in a cluster without such groups a tray is a node like
    any other.

    Returns None if racks make no difference: the pod's own group asks for a rack, no group has
    asked for one, or there is no rack. Nodes with a changed info count as they are in the base
    snapshot.
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
    """Return one more than the devices that are left on a rack's nodes; 0 if they are no rack."""
    if len(trays) < SMALLEST:
        return 0
    return 1 + sum(devices_left(info, resource) for info in trays if not info.node_object.cordoned)


def member_of(snapshot: Snapshot, pod: PodRecord, request: GpuRequest) -> Member | None:
    """Return the pod as a member of its group, with the peers that may come before it now.

    Returns None if the pod is in no group.
    """
    uid, group_ref = pod.uid, pod.group_ref
    if group_ref is None:
        return None
    request = request.without_peers
    others = _other_members(snapshot, uid, group_ref, request)
    tolerates = (
        pod.attributes.eligible_nodes.tolerate_cordon
        and snapshot.group_status(group_ref, uid).tolerates_cordon
    )
    if group_ref.gang:
        peers = others[:OTHER_KINDS]
        known = sum(count for _, count in peers)
        request = replace(
            request,
            peers=_peers(snapshot, uid, group_ref, known),
            others=tuple((each, _counted(count)) for each, count in peers),
        )
    return Member(uid, group_ref, request, others=others, tolerates_cordon=tolerates)


def _peers(snapshot: Snapshot, uid: PodUid, group_ref: GroupReference, others: int) -> int:
    """Return the number of peers with the same request, as far as it is known."""
    if group_ref.size is None or not group_ref.peers_counted:
        return ALL_PEERS
    come = snapshot.group_status(group_ref, uid).have_come(group_ref.size)
    left = group_ref.size - come - 1 - others
    return _counted(max(0, left))


def _counted(peers: int) -> int:
    return peers if peers <= COUNTED_PEERS else ALL_PEERS


def _other_members(
    snapshot: Snapshot, uid: PodUid, group_ref: GroupReference, request: GpuRequest
) -> Requests:
    """Return the waiting members that have another request, by request.

    If there are too many different requests, these are the members with the largest ones.
    """
    members = snapshot.groups.members.get(group_ref.group)
    if members is None:
        return ()
    pod = snapshot.waiting.get(uid)
    own = pod is not None and pod.group_ref is not None and pod.group_ref.group == group_ref.group
    counted = (
        pod.request
        if own and pod and not (uid in members.pods or pod.ended or pod.terminating)
        else None
    )
    but = counted if isinstance(counted, GpuRequest) else None
    return tuple(members.expected(but, request.without_peers, MOST_REQUESTS))
