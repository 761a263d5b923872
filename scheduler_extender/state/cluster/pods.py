"""The pods that are known, and the life of each.

Nobody tells us the whole of it. Sources show pods, and late; our own binds are known before; agents
report which devices a pod holds::

      gone ------------------> pending <------------> nominated
                                |   ^                   |   ^
                         assume |   | forget     assume |   | forget
                                v   |                   v   |
                               assumed (its bind is being written)
                                  |
                                  | the watch confirms it
                                  v           a report shows it
                                bound --------------------------> acknowledged
                                  |                                    |
                                  +-----------------+------------------+
                                        it is deleted, or ends
                                                    v
                                        terminating --> ended
                                                    |
                                                    | the API server has it no more
                                                    v
                  gone <------------------- unconfirmed
                         a report shows that
                         its kubelet has let go

What a pod holds of its node's devices (:mod:`.node.ledger`):

============  ============================================================================
pending       Nothing. Its annotation may reserve a place for it, as if it were nominated.
nominated     A place, if it comes first of those nominated: the others count it as
              assumed. Under DRA the first free devices, until its claim says which.
assumed       So many devices, not known which: it is *unacknowledged*. What it is promised
              counts from here on.
bound         The same.
acknowledged  The devices that the report shows. What it does not show yet of its containers
              is unacknowledged. If it shows none any more: so many, not known which.
terminating   What it held, and may let go of it at any moment.
ended         What a report shows, as above; a succeeded pod nothing, as a rule.
unconfirmed   Like one that is terminating.
gone          Nothing.
============  ============================================================================

Where a pod ends or goes that no report has shown, the other unacknowledged pods may have been
admitted beside it. The node remembers it as *terminated* until they are reported.

What moves a pod, by a method of :class:`.Cache`. *There* is bound,
acknowledged, terminating or ended: a source may show a pod for the first time in any of them.

============  ==============  =====================  =============================================
gone          put_pod         pending, nominated     A source shows it.
gone          put_pod         there                  It was bound by others, or before our time.
gone          assume          assumed                The bind verb has found it at the API server.
pending       put_pod         nominated              kube-scheduler has a node in mind for it.
pending       put_pod         there                  Others have bound it.
pending       assume          assumed                The bind verb has decided.
pending       drop_pod        gone                   It is deleted, and was on no node.
nominated     put_pod         pending                kube-scheduler has changed its mind.
nominated     put_pod         there                  Others have bound it.
nominated     assume          assumed                The bind verb has decided.
nominated     drop_pod        gone                   It is deleted, and was on no node.
assumed       forget          pending, nominated     The bind was surely not written.
assumed       forget          gone                   The same, and no source shows the pod.
assumed       put_pod         there                  The watch confirms the bind, or the settler.
assumed       drop_pod        gone                   The watch shows its end, and showed no bind.
assumed       drop_assumed    unconfirmed, gone      The settler finds it gone; it may be bound.
bound         put_report      acknowledged           The agent has seen its devices.
bound         put_pod         terminating, ended     It is deleted, or has ended.
bound         drop_pod        unconfirmed, gone      It is deleted by force.
acknowledged  put_report      bound                  The node has booted, and shows it no more.
acknowledged  put_pod         terminating, ended     It is deleted, or has ended.
acknowledged  drop_pod        unconfirmed, gone      It is deleted by force.
terminating   put_pod         ended                  Its containers have ended.
terminating   drop_pod        unconfirmed, gone      The API server has it no more.
ended         drop_pod        unconfirmed, gone      gone, if no report shows its devices.
unconfirmed   put_report      gone                   Its agent knew of the end when it looked.
============  ==============  =====================  =============================================

Unconfirmed is skipped where the last report says enough, no agent has ever reported, or the source
itself knows that the kubelet has let go. A list that does not name a pod drops it, but leaves it
assumed. Under DRA a record nominates a pod, too: it shows the pod's claim. What comes too late
changes nothing:

============  ==============  ====================================================================
there         put_pod         On no node: a nodeName is never taken back.
there         assume          The bind verb succeeds without: the pod is bound. To another node it
                              is refused.
assumed       assume          A repeated bind takes the place of the one before, on the same node;
                              to another node it is refused.
there         forget          The bind is confirmed, or another one is assumed: it stands.
gone          forget          The same.
unconfirmed   put_pod         The settler was faster than the watch. Only if it is shown on no
                              node it is pending besides, until the watch shows its end.
(any)         put_report      Older than the report that we have.
============  ==============  ====================================================================
"""

from collections.abc import Iterable
from dataclasses import replace

from scheduler_extender.state.groups.copyonwrite import CopyOnWrite
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid


class ByNode:
    """Pods by the one node that is in mind for each."""

    def __init__(self) -> None:
        self._of: dict[PodUid, NodeName] = {}
        self._pods: dict[NodeName, dict[PodUid, PodRecord]] = {}

    def put(self, uid: PodUid, name: NodeName | None, pod: PodRecord | None) -> list[NodeName]:
        """This node is in mind for a pod, or none. Each node that this concerns."""
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
        """The pods for which this node is in mind."""
        return self._pods.get(name, {}).values()


class Pods:
    """All pods that ask for devices. The cache's lock guards it."""

    def __init__(self) -> None:
        self.known: dict[PodUid, PodRecord] = {}
        self.waiting = CopyOnWrite[PodUid, PodRecord]()  # those that are on no node
        self.assumed = CopyOnWrite[PodUid, PodRecord]()  # as our bind will have them
        # Those for which a node is in mind, or by whose claims it has been chosen.
        self.nominated = CopyOnWrite[PodUid, PodRecord]()
        self.nominated_to = ByNode()
        self.reserved_on = ByNode()  # those of the waiting with a reservation by annotation
        self._claimed_on: dict[PodUid, NodeName] = {}

    def get(self, uid: PodUid) -> PodRecord | None:
        """The pod with this UID, as last seen."""
        return self.known.get(uid)

    def put(self, pod: PodRecord) -> list[NodeName]:
        """A pod is as this now. Each node whose nominated pods or reservations have changed."""
        self.known[pod.uid] = pod
        return self._await(pod.uid, pod if pod.node is None else None)

    def drop(self, uid: PodUid) -> list[NodeName]:
        """A pod is gone. Each node whose nominated pods or reservations have changed."""
        self.known.pop(uid, None)
        return self._await(uid, None)

    def claim(self, uid: PodUid, name: NodeName, *, ends: bool = False) -> list[NodeName]:
        """A pod, which may not be known yet, has devices of a node by a claim, or has them no more.

        kube-scheduler writes both that and where it has the pod in mind, and we may hear of either
        first. Each node whose nominated pods have changed.
        """
        if not ends:
            self._claimed_on[uid] = name
        elif self._claimed_on.get(uid) == name:
            del self._claimed_on[uid]
        return self._nominate(uid, self.waiting.get(uid))

    def _await(self, uid: PodUid, pod: PodRecord | None) -> list[NodeName]:
        """A pod waits; None where it does so no more."""
        if pod is not None:
            self.waiting.put(uid, pod)
        else:
            self.waiting.drop(uid)
        kept = None if pod is None else pod.reservation
        names = self.reserved_on.put(uid, None if kept is None else kept.node, pod)
        return [*names, *self._nominate(uid, pod)]

    def _nominate(self, uid: PodUid, pod: PodRecord | None) -> list[NodeName]:
        """kube-scheduler has a node in mind for a pod that waits, or none."""
        name = None if pod is None else self._claimed_on.get(uid) or pod.attributes.nominated
        if pod is not None and name is not None:
            pod = replace(pod, attributes=replace(pod.attributes, nominated=name))
            self.nominated.put(uid, pod)
        else:
            self.nominated.drop(uid)
        return self.nominated_to.put(uid, name, pod)
