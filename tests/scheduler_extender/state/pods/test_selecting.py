"""Selectors of pods and of nodes, by Kubernetes' rules."""

from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import MANAGED, template_of
from scheduler_extender.kube.sinks import BudgetSink, NodeSink
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import SchedulingAttributes, attributes_of
from scheduler_extender.state.pods.budgets import Budget, refused, violations
from scheduler_extender.state.pods.record import PodRecord, manifest_of
from scheduler_extender.state.pods.selecting import Requirement
from scheduler_extender.wire import Pod, Taint
from tests.nodes import container, pod, record_of
from tests.scheduler_extender.conftest import raw
from topology.core.devices import NodeName, PodUid
from topology.core.requests import gpu_request

NODE = NodeName("n")
AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    """A pod's spec that requires one of these terms."""
    return {"affinity": {"nodeAffinity": {AFFINITY: {"nodeSelectorTerms": list(terms)}}}}


def term(key: str, operator: str, *values: str, of: str = "matchExpressions") -> dict[str, Any]:
    """One term of one line."""
    return {of: [{"key": key, "operator": operator, "values": list(values)}]}


TAINTED = {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}
TOLERATES = {"tolerations": [{"key": "team", "operator": "Equal", "value": "a"}]}
SLA = {"taints": [{"key": "sla", "value": "950", "effect": "NoSchedule"}]}

CASES = [
    pytest.param({}, {}, True, id="anywhere"),
    pytest.param({"nodeSelector": {"pool": "gpu"}}, {}, True, id="selector"),
    pytest.param({"nodeSelector": {"pool": "cpu"}}, {}, False, id="another-value"),
    pytest.param({"nodeSelector": {"zone": "gpu"}}, {}, False, id="another-key"),
    pytest.param(affinity(term("pool", "In", "cpu", "gpu")), {}, True, id="in"),
    pytest.param(affinity(term("pool", "NotIn", "gpu")), {}, False, id="not-in"),
    pytest.param(affinity(term("zone", "NotIn", "gpu")), {}, True, id="not-in-without-label"),
    pytest.param(affinity(term("pool", "Exists")), {}, True, id="exists"),
    pytest.param(affinity(term("pool", "DoesNotExist")), {}, False, id="does-not-exist"),
    pytest.param(affinity(term("rank", "Gt", "3")), {}, True, id="greater"),
    pytest.param(affinity(term("rank", "Lt", "3")), {}, False, id="less"),
    pytest.param(affinity(term("pool", "Gt", "3")), {}, False, id="no-number"),
    pytest.param(affinity(term("words", "Gt", "3")), {}, False, id="no-number-of-go"),
    pytest.param(affinity(term("huge", "Gt", "3")), {}, False, id="more-than-64-bits"),
    pytest.param(affinity(term("a", "Exists"), term("pool", "Exists")), {}, True, id="one-of-two"),
    pytest.param(affinity({}), {}, False, id="an-empty-term-means-no-node"),
    pytest.param(affinity(), {}, False, id="no-term-means-no-node"),
    pytest.param(affinity(term("metadata.name", "In", "n", of="matchFields")), {}, True, id="name"),
    pytest.param({"nodeSelector": {"metadata.name": "n"}}, {}, False, id="name-is-no-label"),
    pytest.param(affinity(term("metadata.name", "In", "n")), {}, False, id="nor-in-an-expression"),
    pytest.param(
        affinity({**term("pool", "Exists"), **term("metadata.name", "In", "m", of="matchFields")}),
        {}, False, id="label-and-name",
    ),
    pytest.param(
        affinity(term("metadata.name", "NotIn", "m", of="matchFields")), {}, True, id="not-this-one"
    ),
    pytest.param({"affinity": {"nodeAffinity": {AFFINITY: 3}}}, {}, False, id="unreadable"),
    pytest.param({"affinity": {"nodeAffinity": {}}}, {}, True, id="preferred-only"),
    pytest.param({}, TAINTED, False, id="tainted"),
    pytest.param(TOLERATES, TAINTED, True, id="tolerated"),
    pytest.param({"tolerations": [{"operator": "Exists"}]}, TAINTED, True, id="tolerates-all"),
    pytest.param(
        {"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoExecute"}]},
        TAINTED, False, id="another-effect",
    ),
    pytest.param(
        {}, {"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}, True, id="preferred-taint"
    ),
    pytest.param(
        {"tolerations": [{"key": "sla", "operator": "Gt", "value": "750"}]}, SLA, True, id="above"
    ),
    pytest.param(
        {"tolerations": [{"key": "sla", "operator": "Gt", "value": "950"}]}, SLA, False, id="equal"
    ),
    pytest.param(
        {"tolerations": [{"key": "sla", "operator": "Lt", "value": "951"}]}, SLA, True, id="below"
    ),
    pytest.param(
        {"tolerations": [{"key": "sla", "operator": "Near", "value": "950"}]}, SLA, False,
        id="nobody-knows-this-operator",
    ),
    pytest.param({}, {"unschedulable": True}, False, id="cordoned"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "node", "expected"), CASES)
def test_where_a_pod_may_be_sent(
    spec: dict[str, Any], node: dict[str, Any], expected: bool
) -> None:
    cluster = Cache(lambda: 0.0)
    labels = {"pool": "gpu", "rank": "7", "words": "1_000", "huge": "9" * 30}
    NodeSink(cluster).apply(raw({"metadata": {"name": "n", "labels": labels}, "spec": node}))
    wanted = record(spec)
    assert cluster.node_info(NODE).is_eligible_for(wanted) is expected
    # A snapshot says the same of the pod.
    again = record_of(manifest_of(wanted))
    assert cluster.node_info(NODE).is_eligible_for(again) is expected


def record(spec: dict[str, Any], **metadata: Any) -> PodRecord:
    """The record of a pod with this in its spec."""
    manifest = pod(1)
    manifest["spec"] |= spec
    manifest["metadata"] |= metadata
    return record_of(manifest)


def test_where_no_node_object_is_known_every_pod_may_come() -> None:
    assert Cache(lambda: 0.0).node_info(NODE).is_eligible_for(record({"nodeSelector": {"a": "b"}}))


def test_labels_change_no_answer() -> None:
    cluster = Cache(lambda: 0.0)
    cluster.put_node(NODE, NodeObject())
    key = cluster.node_info(NODE).key("nvidia.com/gpu")
    cluster.put_node(NODE, NodeObject(labels={"a": "b"}, cordoned=True))
    assert cluster.node_info(NODE).key("nvidia.com/gpu") == key
    assert cluster.node_info(NODE).node_object.labels == {"a": "b"}


def asks(cpu: str) -> dict[str, Any]:
    """A container's requests."""
    return {"resources": {"requests": {"cpu": cpu, "memory": "1Ki"}}}


def test_what_kube_scheduler_counts_for_a_pod() -> None:
    manifest = pod(
        containers=[container("a", 1) | asks("1500m"), {"name": "b", **asks("1")}],
        init=[
            {"name": "first", **asks("4")},
            {"name": "beside", "restartPolicy": "Always", **asks("2")},
            {"name": "second", **asks("3")},
        ],
    )
    manifest["spec"]["overhead"] = {"cpu": "250m"}
    found = attributes_of(template_of(msgspec.convert(manifest, Pod)), MANAGED)
    # Apps and sidecar: 1.5 + 1 + 2; the second init container beside the sidecar: 5; and 0.25.
    assert found.requests == (("cpu", 5250), ("memory", 3 * 1024 * 1000))


def test_which_controller_owns_a_pod() -> None:
    owners = [{"kind": "Foo"}, {"kind": "Job", "controller": True}]
    found = record({"priority": 7}, ownerReferences=owners, labels={"b": "2", "a": "1"})
    assert found.attributes.controller == "Job"
    assert found.attributes.priority == 7
    assert found.attributes.labels == (("a", "1"), ("b", "2"))
    assert record({}).attributes.controller == ""


# Budgets.


def budget(selector: object, allowed: int, **status: Any) -> dict[str, Any]:
    """A PodDisruptionBudget as the API server sends it."""
    return {
        "metadata": {"name": "b", "namespace": "team", "resourceVersion": "1"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed, **status},
    }


def labelled(name: str, **labels: str) -> PodRecord:
    """A running pod with labels."""
    attributes = SchedulingAttributes(labels=tuple(sorted(labels.items())))
    return PodRecord(
        PodUid(name), "team", name, NODE, gpu_request(1), "Running", attributes=attributes
    )


def test_budgets_are_followed() -> None:
    cluster = Cache(lambda: 0.0)
    sink = BudgetSink(cluster)
    known = [cluster.budgets]
    sink.replace([], "1")
    known.append(cluster.budgets)
    assert known == [None, ()], "no budgets are known before the list has come"
    lines = [{"key": "tier", "operator": "In", "values": ["x"]}]
    both = {"matchLabels": {"app": "web"}, "matchExpressions": lines}
    sink.apply(raw(budget(both, 2, disruptedPods={"gone": "2026-01-01T00:00:00Z"})))
    selector = (Requirement("app", "In", ("web",)), Requirement("tier", "In", ("x",)))
    expected = Budget("team", "b", selector, 2, frozenset({"gone"}))
    assert cluster.budgets == (expected,)
    sink.delete(raw(budget(both, 2)))
    known = [cluster.budgets]
    sink.replace([raw({"spec": 3})], "2")
    known.append(cluster.budgets)
    assert known == [(), None], "what cannot be read must not count as no budget"


def test_a_budget_that_cannot_be_read_keeps_all_unknown_until_it_is_gone_or_readable() -> None:
    """The next event published the others without it, and evictions went past it."""
    cluster = Cache(lambda: 0.0)
    sink = BudgetSink(cluster)
    one, two, three = ({"metadata": {"namespace": "team", "name": n}} for n in "abc")
    bad, nameless = raw({**two, "spec": 3}), raw({"metadata": 3})

    def names() -> list[str] | None:
        return None if cluster.budgets is None else [budget.name for budget in cluster.budgets]

    sink.replace([raw(one), bad], "1")
    sink.apply(raw(three))
    assert names() is None
    sink.apply(raw(two))
    assert names() == ["a", "b", "c"]
    sink.apply(bad)
    sink.delete(raw(one))
    assert names() is None, "its former version may promise less"
    sink.delete(bad)
    assert names() == ["c"]
    sink.apply(nameless)
    sink.apply(raw(three))
    assert names() is None
    sink.replace([raw(three)], "2")
    assert names() == ["c"]


WEB = (Requirement("app", "In", ("web",)),)


@pytest.mark.parametrize(
    ("found", "scheduler", "eviction"),
    [
        pytest.param([Budget("team", "b", WEB, 2)], 0, None, id="allowed"),
        pytest.param([Budget("team", "b", WEB, 1)], 1, "w2", id="one-too-many"),
        pytest.param([Budget("other", "b", WEB, 0)], 0, None, id="another-namespace"),
        pytest.param([Budget("team", "b", (), 1)], 0, "w2", id="empty-selector"),
        pytest.param([Budget("team", "b", None, 0)], 0, None, id="no-selector"),
        pytest.param(
            [Budget("team", "b", WEB, 1, frozenset({"w1"}))], 0, None, id="evicted-already"
        ),
        pytest.param([Budget("team", n, WEB, 9) for n in "ab"], 0, "w1", id="two-budgets"),
    ],
)
def test_two_ways_to_count(found: list[Budget], scheduler: int, eviction: str | None) -> None:
    victims = (labelled("w1", app="web"), labelled("w2", app="web"))
    assert violations(victims, tuple(found)) == scheduler
    over = refused(victims, tuple(found))
    assert (over and over.name) == eviction


@pytest.mark.parametrize(
    ("spec", "node", "bar"),
    [
        ({}, {}, ""),
        ({}, {"cordoned": True}, "a cordon"),
        ({}, {"taints": (Taint("gpu", "", "NoSchedule"),)}, "taint gpu:NoSchedule"),
        ({}, {"taints": (Taint("team", "a", "NoExecute"),)}, "taint team=a:NoExecute"),
        ({}, {"taints": (Taint("gpu", "", "PreferNoSchedule"),)}, ""),
        ({"nodeSelector": {"pool": "a"}}, {}, "its nodeSelector pool=a"),
        ({"nodeName": "", "affinity": {"nodeAffinity": 3}}, {}, "its node affinity"),
        ({}, {"taints": (Taint("a\nb", "", "NoSchedule"),)}, "taint a b:NoSchedule"),
    ],
)
def test_what_keeps_a_pod_off_a_node_is_named(
    spec: dict[str, Any], node: dict[str, Any], bar: str
) -> None:
    going = record(spec).attributes.eligible_nodes
    taints, cordoned = node.get("taints", ()), node.get("cordoned", False)
    assert going.bar("n", {"pool": "b"}, taints, cordoned=cordoned) == bar
