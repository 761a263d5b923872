"""What counts as a kubelet's refusal of a pod, and what others may read of it."""

import pytest

from topology.core.refusal import refusal_of

ERROR = "UnexpectedAdmissionError"

CASES: dict[str, tuple[str, str, str, bool, str | None]] = {
    "a device plugin that refuses": ("Failed", ERROR, "Pod was rejected: x", False, ERROR),
    "the same after a run": ("Failed", ERROR, "", True, ERROR),
    "NUMA": ("Failed", "TopologyAffinityError", "", False, "TopologyAffinityError"),
    "devices": ("Failed", "OutOfnvidia.com/gpu", "", False, "OutOfDevices"),
    "CPU": ("Failed", "OutOfcpu", "", False, "OutOfcpu"),
    "the pod's own fault": ("Failed", "SysctlForbidden", "", False, "SysctlForbidden"),
    "a new reason": ("Failed", "Unheard", "Pod was rejected: of", False, "other"),
    "a new reason after a run": ("Failed", "Unheard", "Pod was rejected: of", True, None),
    "evicted": ("Failed", "Evicted", "The node was low on resource: memory", True, None),
    "evicted, no containers kept": ("Failed", "Evicted", "The node was low on", False, None),
    "too long": ("Failed", "DeadlineExceeded", "Pod was active on the node", False, None),
    "a container that failed": ("Failed", "", "", True, None),
    "still pending": ("Pending", ERROR, "", False, None),
    "running": ("Running", "", "", True, None),
}


@pytest.mark.parametrize(
    ("phase", "reason", "message", "has_containers", "label"), CASES.values(), ids=CASES
)
def test_what_counts_as_a_refusal(
    phase: str, reason: str, message: str, has_containers: bool, label: str | None
) -> None:
    found = refusal_of(phase, reason, message, has_containers=has_containers)
    assert (found and found.label) == label


@pytest.mark.parametrize("reason", ["OutOf team-b/train-0", "OutOf" + "x" * 1000, "Out\nOf"])
def test_other_pods_read_only_the_reason_of_a_kubelets_refusal(reason: str) -> None:
    found = refusal_of("Failed", reason, "Pod was rejected: x", has_containers=False)
    assert found is not None
    assert found.reason == "other"
