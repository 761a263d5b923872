"""A pod's selectors are held against each node: each answer stops when the time is up.

The clock of these tests counts label look-ups, so that the tests count work and measure no time.
"""

from typing import Any

import msgspec
import pytest

from scheduler_extender.explain.explanation import NOT_ALL_ASKED, Explanation, explanation_of
from scheduler_extender.explain.wording import NOT_IN_TIME
from scheduler_extender.podlimits import MOST_LINES
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.verbs.preemption import preempt
from scheduler_extender.web.pages import WAITING_SECONDS, Pages
from scheduler_extender.wire import PreemptionArgs
from tests.deadlines import ending_when
from tests.nodes import pod, record_of, switched
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import Allocation, Report

NODES = 200
TERMS = MOST_LINES // 2
ENOUGH = 20 * TERMS  # Look-ups after which the time is up: those of a tenth of the nodes


class Meter:
    """A clock that one look-up moves on."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.lookups = 0
        self._seconds = seconds

    def __call__(self) -> float:
        return self.lookups * self._seconds

    def late(self) -> bool:
        return self.lookups >= ENOUGH


class Labels(dict[str, str]):
    """A node's labels, which tell when they are looked at."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(l="here")
        self._meter = meter

    def get(self, key: str, default: Any = None) -> Any:
        self._meter.lookups += 1
        return super().get(key, default)


def cluster_of(meter: Meter) -> Cache:
    """Nodes whose GPUs are held by one pod each."""
    found = Cache(meter, Settings(stale_after=None))
    for i in range(NODES):
        name, uid = NodeName(f"n{i}"), PodUid(f"holder-{i}")
        ids = tuple(DeviceId(f"GPU-{g}") for g in range(4))
        held = Allocation(uid, "default", uid, "main", "nvidia.com/gpu", ids)
        see(found, pod(4, name=uid, uid=uid, node=name, phase="Running"))
        found.put_record(switched(4, name), Report(allocations=(held,)))
        found.put_node(name, NodeObject(labels=Labels(meter)))
    meter.lookups = 0
    return found


def see(cluster: Cache, manifest: dict[str, Any]) -> None:
    cluster.put_pod(record_of(manifest))


def choosy(name: str, gpus: int = 4, **more: Any) -> dict[str, Any]:
    """A waiting pod with as many terms as are allowed, none of which any node meets."""
    # Terms that are a list of values alone would be looked up together.
    line = {"key": "l", "operator": "NotIn", "values": ["here", f"not-{name}"]}
    terms = [{"matchExpressions": [line]} for _ in range(TERMS)]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    found = pod(gpus, {"link": "nvlink"} if gpus > 1 else {}, name=name, uid=name, **more)
    found["spec"]["affinity"] = {"nodeAffinity": required}
    found["status"] = {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    }
    return found


def test_preemption_for_a_member_of_a_gang_stops_when_the_time_is_up() -> None:
    meter = Meter(0.0)
    cluster = cluster_of(meter)
    member = choosy("member", gpus=1)  # a node would hold the gang if it were empty
    member["metadata"]["annotations"] |= {
        "gpu-topology.io/group-size": "4",
        "gpu-topology.io/group-domain": "node",
    }
    member["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "gang"}
    see(cluster, member)
    offered = {"n0": {"Pods": [{"UID": "holder-0"}], "NumPDBViolations": 0}}
    args = msgspec.convert({"Pod": member, "NodeNameToMetaVictims": offered}, PreemptionArgs)
    assert preempt(cluster, args, ending_when(meter.late)).meta_victims == {}
    assert ENOUGH <= meter.lookups <= ENOUGH + TERMS


def test_an_explanation_says_that_there_was_no_time_for_all_nodes() -> None:
    meter = Meter(0.0)
    cluster = cluster_of(meter)
    see(cluster, choosy("waits"))
    asked = cluster.pod(PodUid("waits"))
    assert asked is not None
    found = explanation_of(cluster.snapshot(), asked, deadline=ending_when(meter.late))
    assert ENOUGH <= meter.lookups <= ENOUGH + TERMS
    assert isinstance(found, Explanation)
    assert (found.whole, found.evaluated, found.notes[0]) == (False, False, NOT_ALL_ASKED)
    assert len(found.nodes) == NODES


@pytest.mark.parametrize("pods", [1, 12])
def test_the_page_of_waiting_pods_counts_pods_that_were_not_evaluated(pods: int) -> None:
    cluster = cluster_of(meter := Meter(WAITING_SECONDS / ENOUGH))
    for i in range(pods):
        see(cluster, choosy(f"p{i:02}"))
    text = Pages(cluster).waiting()
    assert ENOUGH <= meter.lookups <= ENOUGH + TERMS
    assert text.count(NOT_IN_TIME) == pods
