"""The known pods, the life of each, and their reservations.

No single source shows a pod's whole life. Sources show pods late. The extender knows of its own
binds before any source does. Agents report which devices a pod holds::

      gone ------------------> pending <------------> nominated
                                |   ^                   |   ^
                         assume |   | forget     assume |   | forget
                                v   |                   v   |
                               assumed (its bind is being written)
                                  |
                                  | the watch confirms the bind
                                  v           a report shows it
                                bound --------------------------> acknowledged
                                  |                                    |
                                  +-----------------+------------------+
                                        it is deleted, or ends
                                                    v
                                        terminating --> ended
                                                    |
                                                    | the API server has removed it
                                                    v
                  gone <------------------- unconfirmed
                         a report shows that its
                         kubelet has released it

Assumed and bound pods together are *unacknowledged*: no report shows their devices yet. What a pod
holds of its node's devices at each stage (:mod:`.node.ledger`):

============  ============================================================================
pending       Nothing. An annotation may give it a reservation, as if it were nominated.
nominated     A reservation, behind those of the pods nominated to the node with a higher
              priority: other pods see it as assumed. Under DRA the first free devices,
              until its claim names its devices.
assumed       A number of devices, not known which: it is *unacknowledged*. Its promise
              counts from here on.
bound         The same as assumed.
acknowledged  The devices that the report shows. Devices of its containers that the report
              does not show yet are unacknowledged. If the report shows none any more: a
              number of devices, not known which.
terminating   What it held. It may release that at any time.
ended         What a report shows, as above. A succeeded pod usually holds nothing.
unconfirmed   The same as terminating.
gone          Nothing.
============  ============================================================================

A pod may end or disappear before any report shows it. The kubelet may have admitted the other
unacknowledged pods while this pod held devices. So the node keeps the pod as *terminated* until
reports show those other pods.

The next table says which method of :class:`.Cache` moves a pod from stage to stage. *There* stands
for bound, acknowledged, terminating or ended: a source may first show a pod at any of these stages.

============  ==============  =====================  =============================================
gone          put_pod         pending, nominated     A source shows it.
gone          put_pod         there                  Another scheduler bound it, or it was bound
                                                     before the extender started.
gone          assume          assumed                The bind verb has found it at the API server.
pending       put_pod         nominated              kube-scheduler has nominated it to a node.
pending       put_pod         there                  Another scheduler has bound it.
pending       assume          assumed                The bind verb has decided.
pending       drop_pod        gone                   It was deleted, and was on no node.
nominated     put_pod         pending                kube-scheduler has cleared the nomination.
nominated     put_pod         there                  Another scheduler has bound it.
nominated     assume          assumed                The bind verb has decided.
nominated     drop_pod        gone                   It was deleted, and was on no node.
assumed       forget          pending, nominated     The bind was certainly not written.
assumed       forget          gone                   The same, and no source shows the pod.
assumed       put_pod         there                  The watch or the settler confirms the bind.
assumed       drop_pod        gone                   The watch shows its end, and showed no bind.
assumed       drop_assumed    unconfirmed, gone      The settler finds it gone; it may be bound.
bound         put_report      acknowledged           The agent has seen its devices.
bound         put_pod         terminating, ended     It is being deleted, or has ended.
bound         drop_pod        unconfirmed, gone      It was deleted by force.
acknowledged  put_report      bound                  The node has booted; the report omits it.
acknowledged  put_pod         terminating, ended     It is being deleted, or has ended.
acknowledged  drop_pod        unconfirmed, gone      It was deleted by force.
terminating   put_pod         ended                  Its containers have ended.
terminating   drop_pod        unconfirmed, gone      The API server has removed it.
ended         drop_pod        unconfirmed, gone      gone, if no report shows its devices.
unconfirmed   put_report      gone                   Its agent knew of the end when it looked.
============  ==============  =====================  =============================================

A pod skips *unconfirmed* in three cases: the last report already says enough, no agent has ever
reported on the node, or the source itself knows that the kubelet has released the pod. A complete
list drops each pod that it does not name, but an assumed pod stays assumed. Under DRA a record also
nominates a pod, because it shows the pod's claim.

Late news changes nothing:

============  ==============  ====================================================================
there         put_pod         The pod is shown on no node. A nodeName is never taken back.
there         assume          The bind verb succeeds without it, because the pod is bound. A bind
                              to another node is refused.
assumed       assume          A repeated bind to the same node replaces the bind before it. A bind
                              to another node is refused.
there         forget          The bind is confirmed, or another bind is assumed: that one stays.
gone          forget          The same.
unconfirmed   put_pod         The settler was faster than the watch. Only a pod that is shown on no
                              node is also pending, until the watch shows its end.
(any)         put_report      The report is older than the one that we have.
============  ==============  ====================================================================
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from scheduler_extender.state.cluster.freshness import Due
from scheduler_extender.state.groups.copyonwrite import CopyOnWrite
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.reservation import MOST_RESERVATIONS, Reservation
from topology.core.devices import NodeName, PodUid


class Pods:
    """All pods that ask for devices, and the nodes where they count before their bind is shown.

    The cache's lock guards it.
    """

    def __init__(self) -> None:
        self.known: dict[PodUid, PodRecord] = {}
        self.waiting = CopyOnWrite[PodUid, PodRecord]()  # the pods on no node
        self.assumed = CopyOnWrite[PodUid, PodRecord]()  # with the node of our bind
        # The pods that are nominated to a node, or whose claims have devices on one.
        self.nominated = CopyOnWrite[PodUid, PodRecord]()
        # The waiting pods, by each node that they are nominated to or have a reservation on.
        self._on: dict[NodeName, dict[PodUid, PodRecord]] = {}
        self._nodes_of: dict[PodUid, set[NodeName]] = {}
        self._claimed_on: dict[PodUid, NodeName] = {}
        # pods by the time of day at which their reservations by annotation begin or end
        self._due = Due[PodUid]()

    def get(self, uid: PodUid) -> PodRecord | None:
        """Return the pod with this UID, as last seen; None if it is not known."""
        return self.known.get(uid)

    def put(self, pod: PodRecord) -> set[NodeName]:
        """Store a pod, and return each node whose nominated pods or reservations may change."""
        self.known[pod.uid] = pod
        if pod.reservation is not None:
            self._due.put(pod.uid, pod.reservation.begins)
        return self._set_waiting(pod.uid, pod if pod.node is None else None)

    def drop(self, uid: PodUid) -> set[NodeName]:
        """Remove a pod, and return each node whose nominated pods or reservations may change."""
        self.known.pop(uid, None)
        self._due.drop(uid)
        return self._set_waiting(uid, None)

    def node_changed(self, before: NodeInfo | None, info: NodeInfo) -> set[NodeName]:
        """Note what claims have on a node, and return each node whose reservations may change.

        A claim may have devices before its pod is known: kube-scheduler writes both the claim and
        the nomination, and either may reach us first. No pod is nominated to a node that was not
        known before: a reservation there makes a node known.
        """
        names = set[NodeName]()
        if before is not None and info.has_objects_of(before):
            return names
        if before is not None and _what_decides_nominees(before) != _what_decides_nominees(info):
            names.add(info.name)
        claimed = _claimed(info)
        for uid in claimed ^ (_claimed(before) if before is not None else frozenset()):
            if uid in claimed:
                self._claimed_on[uid] = info.name
            elif self._claimed_on.get(uid) == info.name:
                del self._claimed_on[uid]
            names |= self._set_waiting(uid, self.waiting.get(uid))
        return names

    def due(self, today: float) -> Iterator[NodeName]:
        """Yield the node of each reservation by annotation that has begun or ended meanwhile."""
        for uid in self._due.take(today):
            pod = self.known.get(uid)
            if pod is not None and pod.reservation is not None:
                if today < pod.reservation.until:
                    self._due.put(uid, pod.reservation.until)
                yield pod.reservation.node

    def with_reservations(self, info: NodeInfo, today: float) -> NodeInfo:
        """Return the node with its current reservations, and the pods that count as assumed there.

        On a node that allocates devices before the bind (DRA), kube-scheduler nominates a pod as
        soon as it has chosen the devices, before the pod's claim names them. So all pods nominated
        to such a node count as assumed, and none of them gets a reservation by its nomination.
        """
        name = info.name
        # kube-scheduler does not try to place the other pods.
        waiting = [
            pod
            for pod in self._on.get(name, {}).values()
            if not (pod.ended or pod.terminating or pod.gated)
        ]
        # kube-scheduler reserves a number of GPUs, not particular ones, for the one of highest
        # priority.
        nominees = [
            pod
            for pod in (self.nominated.get(each.uid) for each in waiting)
            if pod and pod.attributes.nominated == name and info.is_eligible_for(pod)
        ]
        assumed = {uid: pod for uid, pod in self.assumed.items() if pod.node == name}
        if info.allocates_before_bind:
            assumed = {pod.uid: replace(pod, node=name) for pod in nominees} | assumed
            nominees = []
        if assumed != info.pods.assumed:
            pods = replace(info.pods, assumed=assumed)
            info = replace(info, pods=pods).without_old_terminated()
        annotated = (
            pod
            for pod in waiting
            if (kept := pod.reservation) and kept.node == name and kept.lasts(today)
        )
        oldest = sorted(
            annotated, key=lambda pod: (inf if pod.created is None else pod.created, pod.uid)
        )[:1]
        nominees.sort(key=lambda pod: (-pod.attributes.priority, pod.uid))
        behind = (
            replace(each, reservation=Reservation(name, inf))
            for each in nominees[:MOST_RESERVATIONS]
            if each.uid not in [pod.uid for pod in oldest]
        )
        reserved = *oldest, *behind
        if [*map(_reservation_of, reserved)] != [*map(_reservation_of, info.reservations)]:
            info = replace(info, reservations=reserved)
        return info

    def _set_waiting(self, uid: PodUid, pod: PodRecord | None) -> set[NodeName]:
        """Store a pod as waiting; None for ``pod`` says that it no longer waits.

        A claim with devices decides before the nomination in the pod's status. Return each node
        whose nominated pods or reservations may have changed.
        """
        former = self._nodes_of.pop(uid, set())
        for name in former:
            del self._on[name][uid]
            if not self._on[name]:
                del self._on[name]
        self.nominated.drop(uid)
        if pod is None:
            self.waiting.drop(uid)
            return former
        self.waiting.put(uid, pod)
        to = self._claimed_on.get(uid) or pod.attributes.nominated
        if to is not None:
            attributes = replace(pod.attributes, nominated=to)
            self.nominated.put(uid, replace(pod, attributes=attributes))
        reserved = None if pod.reservation is None else pod.reservation.node
        names = {name for name in (to, reserved) if name is not None}
        for name in names:
            self._on.setdefault(name, {})[uid] = pod
        if names:
            self._nodes_of[uid] = names
        return former | names


def _what_decides_nominees(info: NodeInfo) -> object:
    """Return the part of a node that decides about nominated pods and their reservations."""
    node = info.node_object
    eligibility = (node.exists, node.cordoned, node.labels, node.taints)
    return (info.serves_claims, info.allocates_before_bind, *eligibility)


def _claimed(info: NodeInfo) -> frozenset[PodUid]:
    """Return the pods that have devices on a node by claims."""
    shown = () if info.report is None else info.report.allocations
    return frozenset(each.pod_uid for each in shown if each.claim)


def _reservation_of(pod: PodRecord) -> object:
    """Return the part of a pod with a reservation on which the node's answers depend."""
    return pod.uid, pod.request, pod.reservation, pod.attributes.priority
