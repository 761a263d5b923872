"""Untrusted values are cached within bounds, and values that no sane pod has are not read."""

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from scheduler_extender.annotations import MANAGED, RESERVED
from scheduler_extender.kube.sinks import BudgetSink, NodeSink, PodSink, RecordSink
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import counting_record
from scheduler_extender.wire import pod_decoder
from tests.nodes import pod, switched
from tests.scheduler_extender.serving import Clock, running
from topology.core import memo
from topology.core.devices import NodeName

Object = dict[str, Any]
MANY = 2_000
TIMES = 3
KIB = 1024


def with_terms(n: int, k: int) -> Object:
    term = {"matchExpressions": [{"key": "l", "operator": "In", "values": [f"v{n}-{k}"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * k}}
    return {"spec": {"affinity": {"nodeAffinity": required}}}


def with_resources(n: int, k: int) -> Object:
    limits = {"nvidia.com/gpu": "1", **{f"a.b/r{n}-{j}": "1" for j in range(k)}}
    return {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


PODS: dict[str, Callable[[int, int], Object]] = {
    "metadata.annotations": lambda n, k: {
        "metadata": {"annotations": {f"a{n}-{j}": "v" for j in range(k)}}
    },
    "metadata.labels": lambda n, k: {"metadata": {"labels": {f"l{n}-{j}": "v" for j in range(k)}}},
    "spec.nodeSelector": lambda n, k: {
        "spec": {"nodeSelector": {f"l{n}-{j}": "v" for j in range(k)}}
    },
    "spec.tolerations": lambda n, k: {
        "spec": {"tolerations": [{"key": f"k{n}-{j}", "operator": "Exists"} for j in range(k)]}
    },
    "spec.affinity.nodeAffinity": with_terms,
    "resources": with_resources,
    "spec.resourceClaims": lambda n, k: {"spec": {"resourceClaims": own_claims(n, k)}},
}
# What else a pod may list. Whether it is refused for that or not, little is kept of it.
NAMES = "x" * 100
LISTS: dict[str, Callable[[int], Object]] = {
    **{field: lambda k, f=field: PODS[f](0, k) for field in PODS},  # type: ignore[misc]
    "containers": lambda k: {
        "spec": {"containers": [with_gpu(f"c{j}", {f"a.b/r{j}": "1"}) for j in range(k)]}
    },
    "init containers": lambda k: {
        "spec": {"initContainers": [with_gpu(f"c{j}", {}) for j in range(k)]}
    },
    "ports": lambda k: {
        "spec": {
            "containers": [
                {**with_gpu("c", {}), "ports": [{"hostPort": 1 + j % 9000} for j in range(k)]}
            ]
        }
    },
    "overhead": lambda k: {"spec": {"overhead": {f"a.b/r{j}": "1" for j in range(k)}}},
    "gates": lambda k: {"spec": {"schedulingGates": [{"name": f"g{j}"} for j in range(k)]}},
    "spread": lambda k: {
        "spec": {"topologySpreadConstraints": [{"topologyKey": f"t{j}"} for j in range(k)]}
    },
    "owners": lambda k: {
        "metadata": {"ownerReferences": [{"kind": f"K{j}{NAMES}", "name": "x"} for j in range(k)]}
    },
    "conditions": lambda k: {
        "status": {"conditions": [{"type": f"t{j}", "reason": NAMES} for j in range(k)]}
    },
    "container statuses": lambda k: {
        "status": {"containerStatuses": [{"name": f"c{j}"} for j in range(k)]}
    },
    "claim statuses": lambda k: {
        "spec": {"resourceClaims": own_claims(0, 8)},
        "status": {
            "resourceClaimStatuses": [
                {"name": f"n{j}", "resourceClaimName": f"m{j}"} for j in range(k)
            ]
        },
    },
    "mappings": lambda k: {
        "status": {
            "extendedResourceClaimStatus": {
                "resourceClaimName": "c",
                "requestMappings": [
                    {"containerName": f"c{j}", "resourceName": f"a.b/r{j}"} for j in range(k)
                ],
            }
        }
    },
    "victims of a reservation": lambda k: {
        "metadata": {
            "annotations": {
                RESERVED: json.dumps(
                    {
                        "uid": "uid-pod",
                        "node": "node",
                        "until": "2026-01-01T00:00:00Z",
                        "victims": [f"{j}" * (k // 20) for j in range(64)],
                    }
                )
            }
        }
    },
    "node of a reservation": lambda k: {
        "metadata": {
            "annotations": {
                RESERVED: json.dumps(
                    {"uid": "uid-pod", "node": "n" * k, "until": "2026-01-01T00:00:00Z"}
                )
            }
        }
    },
}


def own_claims(n: int, k: int) -> list[Object]:
    return [{"name": f"n{j}", "resourceClaimName": f"claim-{n}-{j}"} for j in range(k)]


def with_gpu(name: str, more: Object) -> Object:
    limits = {"nvidia.com/gpu": "1", **more}
    return {"name": name, "resources": {"limits": limits}}


NODES: dict[str, Callable[[int, int], Object]] = {
    "labels": lambda n, k: {"metadata": {"labels": {f"l{n}-{j}": f"v{n}" for j in range(k)}}},
    "taints": lambda n, k: {
        "spec": {"taints": [{"key": f"t{n}-{j}", "effect": "NoSchedule"} for j in range(k)]}
    },
    "allocatable": lambda n, k: {
        "status": {
            "allocatable": {"nvidia.com/gpu": "4", **{f"a.b/r{n}-{j}": "1" for j in range(k)}}
        }
    },
}


def merged(base: Object, more: Object) -> Object:
    return {
        key: merged(base.get(key, {}), value) if isinstance(value, dict) else value
        for key, value in {**base, **more}.items()
    }


def greedy(field: str, n: int = 0, k: int = MANY) -> Object:
    return merged(pod(1, {"link": "nvlink"}), PODS[field](n, k))


def raw(manifest: Object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(manifest).encode())


@contextmanager
def kept() -> Iterator[Callable[[], int]]:
    """How many bytes are kept more than at the start."""
    memo.forget()
    gc.collect()
    gc.freeze()  # what was there before is not looked through again and again
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]

    def now() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    try:
        yield now
    finally:
        tracemalloc.stop()
        gc.unfreeze()
        memo.forget()


@pytest.mark.parametrize("field", PODS)
def test_a_pod_that_says_too_much_is_refused_and_the_next_one_is_not(field: str) -> None:
    with running(switched(4, "node")) as service:
        answer = service.filter(greedy(field), "node")
        reason = answer["FailedAndUnresolvableNodes"]["node"]
        assert reason.startswith(f"{field}: ")
        assert " entries; at most " in reason
        assert len(reason) < 120
        assert reason in service.bind(greedy(field), "node")
        assert service.filter(pod(1, {"link": "nvlink"}), "node")["NodeNames"] == ["node"]
        assert service.filter(greedy(field, k=20), "node")["NodeNames"] == ["node"]


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("asked", [1, 0])
@pytest.mark.parametrize("field", LISTS)
def test_little_is_kept_of_a_list_however_long(field: str, asked: int, bound: bool) -> None:
    """A pod asks for a GPU, or its claims have some; its node is known, or not yet."""
    listed = [merged(pod(asked), LISTS[field](k)) for k in (8, 20_000)]
    for each in listed:
        each["metadata"]["uid"] = "uid-pod"
        if bound:
            each["spec"]["nodeName"] = "node"
        each["spec"].setdefault("resourceClaims", [] if asked else own_claims(0, 1))
    short, long = (counting_record(pod_decoder.decode(raw(each)), MANAGED) for each in listed)
    assert short is not None or not (asked or bound)
    assert len(repr(long)) < 20 * KIB


@pytest.mark.parametrize("field", PODS)
def test_pods_that_say_too_much_leave_nothing_behind(field: str) -> None:
    sink = PodSink(Cache(Clock()))
    sink.apply(raw(greedy(field, TIMES)))
    sink.delete(raw(greedy(field, TIMES)))
    with kept() as bytes_kept:
        for n in range(TIMES):
            sink.apply(raw(greedy(field, n)))
            assert bytes_kept() < 200 * KIB
        sink.delete(raw(greedy(field)))
        assert bytes_kept() < 100 * KIB


@pytest.mark.parametrize("field", NODES)
def test_a_node_that_is_rewritten_again_and_again_is_kept_once(field: str) -> None:
    cluster = Cache(Clock())
    sink = NodeSink(cluster)
    base = {"metadata": {"name": "node"}, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}
    with kept() as bytes_kept:
        for n in range(TIMES):
            sink.apply(raw(merged(base, NODES[field](n, MANY))))
        assert bytes_kept() < 200 * KIB
    assert_cautious(field, cluster.node_info(NodeName("node")))


def test_the_log_names_nodes_that_say_too_much_only_a_few_times() -> None:
    sink = NodeSink(Cache(Clock()))
    with capture_logs() as logs:
        for n in range(40):
            for name in ("one", "other"):
                sink.apply(raw(merged({"metadata": {"name": name}}, NODES["labels"](n, MANY))))
    assert [(line["node"], line["metadata.labels"]) for line in logs] == [
        ("one", MANY),
        ("other", MANY),
    ]


UNREADABLE = {
    PodSink: merged(pod(1), {"status": {"phase": 1}}),
    NodeSink: {"metadata": {"name": "p"}, "spec": {"taints": "none"}},
    RecordSink: {"metadata": {"name": "p"}, "spec": {"devices": "none"}},
    BudgetSink: {"metadata": {"name": "p"}, "spec": {"selector": 1}},
}


@pytest.mark.parametrize("sink", UNREADABLE, ids=lambda sink: sink.__name__)
def test_an_object_that_cannot_be_read_is_logged_once_for_each_reason(sink: type) -> None:
    """However often it is written; and of many such objects the log tells a few."""
    taken, bad = sink(Cache(Clock())), UNREADABLE[sink]
    with capture_logs() as logs:
        for n in range(5):
            taken.apply(raw(merged(bad, {"metadata": {"generation": n}})))
            taken.replace([raw(bad)], "7")
    assert len(logs) == 1, logs
    with capture_logs() as logs:
        for n in range(100):
            taken.apply(raw(merged(bad, {"metadata": {"name": f"other-{n}"}})))
    assert 0 < len(logs) < 20, logs


def assert_cautious(field: str, info: NodeInfo) -> None:
    """What is not read of a node never makes anything possible there."""
    if field == "labels":
        assert info.node_object.labels == {}
    if field == "taints":
        assert info.node_object.cordoned
    if field == "allocatable":
        assert info.node_object.allocatable == (("nvidia.com/gpu", 4000),)


@pytest.mark.parametrize("field", NODES)
def test_sane_nodes_that_change_all_the_time_stay_within_the_bound(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo, "BYTES", 200 * KIB)
    sink = NodeSink(Cache(Clock()))
    base = {"metadata": {"name": "node"}, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}
    with kept() as bytes_kept:
        for n in range(12):
            sink.apply(raw(merged(base, NODES[field](n, 200))))
        assert bytes_kept() < 400 * KIB
