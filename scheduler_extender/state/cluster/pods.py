"""The known pods, and the life of each.

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

from collections.abc import Iterable
from dataclasses import replace

from scheduler_extender.state.groups.copyonwrite import CopyOnWrite
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid


class ByNode:
    """Pods, each by the one node that it is nominated to or has its reservation on."""

    def __init__(self) -> None:
        self._of: dict[PodUid, NodeName] = {}
        self._pods: dict[NodeName, dict[PodUid, PodRecord]] = {}

    def put(self, uid: PodUid, name: NodeName | None, pod: PodRecord | None) -> list[NodeName]:
        """Set or clear the node of a pod, and return its former node and its new one.

        None for ``name`` or ``pod`` clears it.
        """
        names, former = [], self._of.pop(uid, None)
        if former is not None:
            names.append(former)
            del self._pods[former][uid]
            if not self._pods[former]:
                del self._pods[former]
        if name is not None and pod is not None:
            names.append(name)
            self._of[uid] = name
            self._pods.setdefault(name, {})[uid] = pod
        return names

    def on(self, name: NodeName) -> Iterable[PodRecord]:
        """Return the pods that have this node."""
        return self._pods.get(name, {}).values()


class Pods:
    """All pods that ask for devices. The cache's lock guards it."""

    def __init__(self) -> None:
        self.known: dict[PodUid, PodRecord] = {}
        self.waiting = CopyOnWrite[PodUid, PodRecord]()  # the pods on no node
        self.assumed = CopyOnWrite[PodUid, PodRecord]()  # with the node of our bind
        # The pods that are nominated to a node, or whose claims have devices on one.
        self.nominated = CopyOnWrite[PodUid, PodRecord]()
        self.nominated_to = ByNode()
        self.reserved_on = ByNode()  # waiting pods with a reservation by annotation
        self._claimed_on: dict[PodUid, NodeName] = {}

    def get(self, uid: PodUid) -> PodRecord | None:
        """Return the pod with this UID, as last seen; None if it is not known."""
        return self.known.get(uid)

    def put(self, pod: PodRecord) -> list[NodeName]:
        """Store a pod, and return each node whose nominated pods or reservations have changed."""
        self.known[pod.uid] = pod
        return self._await(pod.uid, pod if pod.node is None else None)

    def drop(self, uid: PodUid) -> list[NodeName]:
        """Remove a pod, and return each node whose nominated pods or reservations have changed."""
        self.known.pop(uid, None)
        return self._await(uid, None)

    def claim(self, uid: PodUid, name: NodeName, *, ends: bool = False) -> list[NodeName]:
        """Note that a claim of a pod has devices on a node, or no longer has them (``ends``).

        Return each node whose nominated pods have changed. The pod may not be known yet:
        kube-scheduler writes both the claim and the nomination, and either may reach us first.
        """
        if not ends:
            self._claimed_on[uid] = name
        elif self._claimed_on.get(uid) == name:
            del self._claimed_on[uid]
        return self._nominate(uid, self.waiting.get(uid))

    def _await(self, uid: PodUid, pod: PodRecord | None) -> list[NodeName]:
        """Store a pod as waiting; None for ``pod`` says that it no longer waits.

        Return each node whose nominated pods or reservations have changed.
        """
        if pod is not None:
            self.waiting.put(uid, pod)
        else:
            self.waiting.drop(uid)
        kept = None if pod is None else pod.reservation
        names = self.reserved_on.put(uid, None if kept is None else kept.node, pod)
        return [*names, *self._nominate(uid, pod)]

    def _nominate(self, uid: PodUid, pod: PodRecord | None) -> list[NodeName]:
        """Set the node that a waiting pod is nominated to, or clear it.

        A claim with devices decides before the nomination in the pod's status. Return each node
        whose nominated pods have changed.
        """
        name = None if pod is None else self._claimed_on.get(uid) or pod.attributes.nominated
        if pod is not None and name is not None:
            pod = replace(pod, attributes=replace(pod.attributes, nominated=name))
            self.nominated.put(uid, pod)
        else:
            self.nominated.drop(uid)
        return self.nominated_to.put(uid, name, pod)
