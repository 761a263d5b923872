"""Compares the devices in a report with the predicted outcomes.

A difference means that there is a bug, or a pod of which no source told us.

A report may name the devices of a pod that was bound and unacknowledged until then. We compare them
with everything that could follow from the report before: every outcome in every possible free
state, also if running pods end. A *misprediction* is a pod with other devices, or with devices that
break its promise.

Under DRA only kube-scheduler knows which devices it has given to pods whose claims are not written
yet. Other pods may therefore get other devices than the next free ones. So only the promise is
checked.

If GPUs became sick or healthy while the pod was unacknowledged, it is not known from which of them
its kubelet chose. Then only the promise is checked, too. No report shows a GPU that becomes sick
and healthy again between two reports. A pod that was admitted in between may wrongly be called a
misprediction.
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
from topology.core.admission import DeviceManager, device_manager_of, opaque
from topology.core.devices import PodUid
from topology.core.devicesets import DeviceSet, gpus, total
from topology.core.graph import NodeTopology
from topology.core.placement import predicted, satisfies
from topology.core.report import Report
from topology.core.requests import NO_CONSTRAINTS, GpuRequest

OUTSIDE = "outside-outcomes"  # the pod has GPUs that are in no predicted outcome
BROKEN = "promise-broken"  # the pod has GPUs that do not meet what it was promised


@dataclass(frozen=True, slots=True)
class Misprediction:
    """One pod whose GPUs the extender mispredicted."""

    kind: str  # OUTSIDE or BROKEN
    pod: PodRecord
    node: str
    got: tuple[int, ...]  # its GPUs, as driver indices
    # pods that other schedulers bound, unknown until now; they may have come first
    foreign: tuple[str, ...]
    cluster_file: str  # replays the state just before the report

    @property
    def message(self) -> str:
        """One line for people. It becomes an Event on the pod, so it names no other pod."""
        words = {
            OUTSIDE: "these GPUs were not predicted for this pod",
            BROKEN: "these GPUs do not meet the pod's constraints",
        }
        why = "; pods bound without the extender may have taken GPUs first" if self.foreign else ""
        return f"{self.node} gave GPUs {','.join(map(str, self.got))}: {words[self.kind]}{why}"


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of verifying a report."""

    mispredictions: tuple[Misprediction, ...] = ()
    # promises kept: the report is the first to name all devices of the pod, and they meet the
    # promise
    kept: int = 0

    def __add__(self, other: Verified) -> Verified:
        return Verified(self.mispredictions + other.mispredictions, self.kept + other.kept)


def verify(before: NodeInfo, after: NodeInfo) -> Verified:
    """Compare a report with the prediction, and return the mispredictions and the kept promises.

    ``before`` and ``after`` are the node before and after the report. Pods whose devices have
    changed are checked only against their promise, because a kubelet that lost its checkpoint
    admits everything again. After a reboot that holds for all pods.
    """
    former, report = before.report, after.report
    if before.topology is None or former is None or report is None:
        return Verified()
    if former.boot_id == report.boot_id and set(report.allocations) <= set(former.allocations):
        return Verified()  # no pod has a device that it did not have before
    verified = Verified()
    for resource in before.topology.resources:
        then, now = before.last_offer(resource.name), after.last_offer(resource.name)
        if isinstance(then, Offer) and isinstance(now, Offer):
            verified += _verify(before, then, former, now, report)
    return verified


def _verify(info: NodeInfo, then: Offer, before: Report, now: Offer, after: Report) -> Verified:
    kubelet, resource = device_manager_of(then.topology, then.resource), then.resource.name
    if before.missing or after.missing:
        # a GPU that does not answer now may have answered at some time in between
        kubelet = opaque(kubelet)
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
            continue  # only part of its devices is shown, even if it has ended meanwhile
        if same_boot and then.ledger.shown.get(pod.uid) == got:
            continue
        if same_boot and pod.ended and pod.uid in info.pods.acknowledged:
            # a kubelet may show devices again that it showed before, and gives the pod no new ones
            continue
        kinds = []
        # under DRA the devices were known, so nothing was predicted
        at_bind = info.allocates_before_bind
        predictable = same_boot and calm and pod.uid not in info.pods.unsettled and not at_bind
        if predictable and not _foreseen(kubelet, then.ledger, pod.uid, got):
            kinds.append(OUTSIDE)
        mask, replicas = gpus(got, kubelet.width), kubelet.replicas
        if not satisfies(kubelet.shape, pod.promised, mask, count=held, replicas=replicas):
            kinds.append(BROKEN)
        elif pod.promised != NO_CONSTRAINTS and not at_bind:  # otherwise bind has counted it
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


def _foreseen(kubelet: DeviceManager, then: Ledger, uid: PodUid, got: DeviceSet) -> bool:
    """Check whether a pod could get these devices, if it was unacknowledged before the report."""
    pod = then.unacknowledged.get(uid)
    if pod is None:
        return True
    others = list(then.availability.unacknowledged)
    others.remove(pod)
    now = replace(then.availability, unacknowledged=tuple(others))
    sets, _ = predicted(kubelet, now, pod)
    # Devices that the pod had already, and that the kubelet would not hand out again, are no part
    # of an outcome.
    kept = then.shown.get(uid, 0) - pod.shown
    return sets is None or got - kept in sets


def _foreign(before: Report, after: Report, pods: Iterable[PodRecord]) -> tuple[str, ...]:
    known = {pod.uid for pod in pods} | {a.pod_uid for a in before.allocations}
    new = {f"{a.namespace}/{a.pod}" for a in after.allocations if a.pod_uid not in known}
    return tuple(sorted(new))


def replayable(topology: NodeTopology, report: Report, pods: Iterable[PodRecord]) -> str:
    """Return a cluster file of one node as JSON, which `gpu-topology check --cluster` replays."""
    documents: list[dict[str, Any]] = [codec.encode(topology, report)]
    documents += [manifest_of(pod) for pod in pods]
    return json.dumps({"kind": "List", "items": documents}, separators=(",", ":"))
