"""Pods that have succeeded: their devices are free, though reports show them for a while.

A kubelet writes the phase Succeeded once a pod holds nothing any more, and nobody else writes it.
It drops the pod's devices before it hands out the next ones, and until then it may show them. So
they are free to whoever is admitted from now on, and are taken out of the report. Two cases are
left to :mod:`.ledger`, for which the devices may be released at any moment:

* Somebody is unreported, who may have been admitted while the pod held its devices.
* We did not see the pod succeed, but find it so in a list: others may have come before that, of
  which we hear only later.

A failed pod is none of these: others than its kubelet write that phase, too.

Sources: Kubernetes 1.36 ``kubelet/status/status_manager.go`` (``mergePodStatus``),
``kubelet/kubelet_pods.go`` (``isPodInactive``), ``kubelet/cm/devicemanager/manager.go``
(``UpdateAllocatedDevices``).
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import replace

from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import PodUid
from topology.core.report import Report

SUCCEEDED = "Succeeded"


def with_success(facts: NodeFacts, before: PodRecord | None, pod: PodRecord) -> NodeFacts:
    """The facts after a pod has changed: where it succeeds now, its devices are free."""
    if pod.phase != SUCCEEDED or before is None or before.ended or before.node != pod.node:
        return facts
    report, topology = facts.report, facts.topology
    if report is None or topology is None or report.not_ready:
        return facts
    if not any(a.pod_uid == pod.uid for a in report.allocations):
        return facts
    if any(facts.unreported(served.name) for served in topology.resources):
        return facts
    released = facts.released | {pod.uid}
    return facts.changed(released=released, report=without_devices_of(report, released))


def without_devices_of(report: Report, released: Collection[PodUid]) -> Report:
    """A report without the devices of pods that have released theirs."""
    if not any(a.pod_uid in released for a in report.allocations):
        return report
    left = tuple(a for a in report.allocations if a.pod_uid not in released)
    return replace(report, allocations=left)


def still_released(
    released: Collection[PodUid], report: Report, pods: Container[PodUid]
) -> frozenset[PodUid]:
    """The released pods that a report after this one may show: it does so, or they are known."""
    shown = {a.pod_uid for a in report.allocations}
    return frozenset(uid for uid in released if uid in shown or uid in pods)
