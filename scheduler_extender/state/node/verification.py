"""Did we foresee what a report shows? If not, there is a bug, or a pod that nobody told us of.

A report may name the devices of a pod that was bound and unacknowledged until then. We compare them
with all that could come of the report before: every outcome in every possible free state, also
if running pods end. A *misprediction* is a pod with other devices, or with devices that break its
promise.

Under DRA kube-scheduler alone knows what it has given to pods whose claims are not written yet, so
that others may get other devices than the next: there, too, only the promise is checked.

If GPUs turned sick or healed while the pod was unacknowledged, nobody knows from which of them its
kubelet chose; then only its promise is checked. No report shows a GPU that turns sick and heals
between two reports: a pod that was admitted meanwhile may wrongly be called a misprediction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from scheduler_extender.state.node.ledger import Ledger
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from scheduler_extender.state.node.transitions import offers_the_same
from scheduler_extender.state.pods.record import PodRecord, manifest_of
from topology import codec
from topology.core.admission import Kubelet, kubelet_of, opaque
from topology.core.devices import PodUid
from topology.core.devicesets import DeviceSet, gpus, total
from topology.core.graph import NodeTopology
from topology.core.placement import predicted, satisfies
from topology.core.report import Report
from topology.core.requests import NO_CONSTRAINTS, GpuRequest

OUTSIDE = "outside-outcomes"  # the pod has GPUs that it could not have been given
BROKEN = "promise-broken"  # the pod has GPUs that do not meet what it was promised


@dataclass(frozen=True, slots=True)
class Misprediction:
    """One pod whose GPUs the extender mispredicted."""

    kind: str  # OUTSIDE or BROKEN
    pod: PodRecord
    node: str
    got: tuple[int, ...]  # its GPUs, as driver indices
    foreign: tuple[str, ...]  # pods that others bound, unknown until now: they may have come first
    cluster_file: str  # replays the moment before

    @property
    def message(self) -> str:
        """One line for people. It becomes an Event on the pod, so it names no other."""
        words = {
            OUTSIDE: "GPUs that the node's allocator was not expected to hand out",
            BROKEN: "GPUs that do not meet what the pod requires",
        }
        why = "; others bound pods there, unacknowledged until now" if self.foreign else ""
        return f"{self.node} gave GPUs {','.join(map(str, self.got))}: {words[self.kind]}{why}"


@dataclass(frozen=True, slots=True)
class Verified:
    """What a report comes to."""

    mispredictions: tuple[Misprediction, ...] = ()
    kept: int = 0  # promises: the report first names all devices of the pod, and they meet them

    def __add__(self, other: Verified) -> Verified:
        return Verified(self.mispredictions + other.mispredictions, self.kept + other.kept)


def verify(before: NodeInfo, after: NodeInfo) -> Verified:
    """Compare a report with what was foreseen, by the node's facts ``before`` and ``after`` it.

    Pods whose devices have changed (a kubelet that lost its checkpoint admits everything anew) are
    checked against their promise; after a reboot all pods are.
    """
    former, report = before.report, after.report
    if before.topology is None or former is None or report is None:
        return Verified()
    if former.boot_id == report.boot_id and set(report.allocations) <= set(former.allocations):
        return Verified()  # nobody has anything that was not there before
    verified = Verified()
    for resource in before.topology.resources:
        then, now = before.last_offer(resource.name), after.last_offer(resource.name)
        if isinstance(then, Offer) and isinstance(now, Offer):
            verified += _verify(before, then, former, now, report)
    return verified


def _verify(info: NodeInfo, then: Offer, before: Report, now: Offer, after: Report) -> Verified:
    kubelet, resource = kubelet_of(then.topology, then.resource), then.resource.name
    if before.missing or after.missing:
        kubelet = opaque(kubelet)  # a GPU that does not answer may have, at some time in between
    same_boot, calm = before.boot_id == after.boot_id, offers_the_same(after, before)
    known = set(before.allocations) if same_boot else set()
    new = {a.pod_uid for a in set(after.allocations) - known}
    pods = info.pods.every
    mispredictions, kept = list[Misprediction](), 0
    for pod in pods:
        got = now.ledger.shown.get(pod.uid) if pod.uid in new else None
        if got is None or not isinstance(pod.request, GpuRequest):
            continue
        if pod.request.resource != resource:
            continue
        held = total(got, kubelet.width)
        if pod.uid in now.ledger.unacknowledged or held < pod.request.count:
            continue  # part of it is shown; whether it has ended meanwhile or not
        if same_boot and then.ledger.shown.get(pod.uid) == got:
            continue
        if same_boot and pod.ended and pod.uid in info.pods.acknowledged:
            continue  # a kubelet may show once more what it has shown before, and gives it no GPUs
        kinds = []
        at_bind = info.allocates_before_bind  # nothing was left to foresee
        settled = same_boot and calm and pod.uid not in info.pods.unsettled and not at_bind
        if settled and not _foreseen(kubelet, then.ledger, pod.uid, got):
            kinds.append(OUTSIDE)
        mask, replicas = gpus(got, kubelet.width), kubelet.replicas
        if not satisfies(kubelet.shape, pod.promised, mask, count=held, replicas=replicas):
            kinds.append(BROKEN)
        elif pod.promised != NO_CONSTRAINTS and not at_bind:  # else bind has counted it
            kept += 1
        mispredictions += [
            Misprediction(
                kind,
                pod,
                info.name,
                then.devices.indices(mask),
                _foreign(before, after, pods),
                replayable(then.topology, before, pods),
            )
            for kind in kinds
        ]
    return Verified(tuple(mispredictions), kept)


def _foreseen(kubelet: Kubelet, then: Ledger, uid: PodUid, got: DeviceSet) -> bool:
    """Whether a pod could get these devices, if it was unacknowledged then."""
    pod = then.unacknowledged.get(uid)
    if pod is None:
        return True
    others = list(then.availability.unacknowledged)
    others.remove(pod)
    now = replace(then.availability, unacknowledged=tuple(others))
    sets, _ = predicted(kubelet, now, pod)
    # What it had already, and the kubelet would not hand out again, is no outcome to foresee.
    kept = then.shown.get(uid, 0) - pod.shown
    return sets is None or got - kept in sets


def _foreign(before: Report, after: Report, pods: Iterable[PodRecord]) -> tuple[str, ...]:
    known = {pod.uid for pod in pods} | {a.pod_uid for a in before.allocations}
    new = {f"{a.namespace}/{a.pod}" for a in after.allocations if a.pod_uid not in known}
    return tuple(sorted(new))


def replayable(topology: NodeTopology, report: Report, pods: Iterable[PodRecord]) -> str:
    """A cluster file of one node as JSON documents: `gpu-topology check --cluster` replays it."""
    documents: list[dict[str, Any]] = [codec.encode(topology, report)]
    documents += [manifest_of(pod) for pod in pods]
    return json.dumps({"kind": "List", "items": documents}, separators=(",", ":"))
