"""A record that is larger than any agent's is a problem of its node, and delays no pod."""

import json
from typing import Any

import msgspec
import pytest

from scheduler_extender.clientlimits import MAX_RECORD, MAX_RECORD_VALUES
from scheduler_extender.kube.sinks import NodeSink, PodSink, RecordSink
from scheduler_extender.state.cluster.cache import Cache
from tests.counting import calls
from tests.crd import schema
from tests.manifests.test_crd import fill
from tests.nodes import pod, switched
from tests.scheduler_extender.serving import Clock
from tests.topology.agent.model.oversizedmachines import EXCEEDING
from topology import codec
from topology.agent.model.recordlimits import LARGEST_RECORD
from topology.codec import wire
from topology.core.devices import NodeName
from topology.core.report import Report

Object = dict[str, Any]


def small(name: str = "node") -> Object:
    return codec.encode(switched(4, name), Report("boot", 1))


def sized(more: int, **parts: Object) -> Object:
    """A record that has so many bytes more, in a field that we pass over."""
    return {**small(), **parts, "spec": {**small()["spec"], "filler": "x" * more}}


def raw(record: Object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(record, separators=(",", ":")).encode())


def size(record: Object) -> int:
    return sum(len(raw(record[part])) for part in ("spec", "status"))


@pytest.fixture
def cluster() -> Cache:
    return Cache(Clock())


def problem(cluster: Cache, record: Object) -> str | None:
    """What is wrong with the node once its record has come."""
    RecordSink(cluster, lambda: 0.0).apply(raw(record))
    return cluster.node_info(NodeName("node")).record.problem


def test_a_record_up_to_the_limit_is_read_and_a_larger_one_is_a_problem(cluster: Cache) -> None:
    quota = MAX_RECORD - size(sized(0))
    assert problem(cluster, sized(quota)) is None
    assert cluster.node_info(NodeName("node")).topology is not None
    assert problem(cluster, sized(quota + 1)) == (
        f"spec and status have {MAX_RECORD + 1} bytes; at most {MAX_RECORD} are allowed"
    )
    assert problem(cluster, small()) is None  # the next one is good again


def test_a_record_of_too_many_values_is_a_problem(cluster: Cache) -> None:
    dense = small()
    dense["spec"]["filler"] = [[]] * MAX_RECORD_VALUES
    message = problem(cluster, dense)
    assert message is not None
    assert message.endswith(f" values; at most {MAX_RECORD_VALUES} are allowed")


def test_what_the_api_server_notes_beside_a_record_does_not_count(cluster: Cache) -> None:
    owned = {"metadata": {"name": "node", "managedFields": [{"f:x": "y" * MAX_RECORD}]}}
    assert problem(cluster, sized(0, **owned)) is None


def test_one_large_record_costs_no_other_node(cluster: Cache) -> None:
    sink = RecordSink(cluster, lambda: 0.0)
    sink.replace([raw(sized(MAX_RECORD)), raw(small("other"))], "1")
    assert cluster.node_info(NodeName("node")).record.problem
    assert cluster.node_info(NodeName("other")).topology is not None


@pytest.mark.parametrize(
    "written",
    [
        b'{"metadata":{"name":"node"},"spec":{"devices":"\xff"}}',
        b'{"metadata":{"name":"node"},"spec":1e999}',
        b'{"metadata":{"name":"node"},"spec":{"devices":[{"index":' + b"9" * 5000 + b"}]}}",
        b'{"metadata":{"name":"node"},"spec":null,"status":null}',
        b'{"metadata":{"name":"node"}}',
    ],
    ids=["no UTF-8", "a number without end", "a long number", "null", "nothing"],
)
def test_a_record_that_cannot_be_read_is_a_problem_and_no_fault_of_ours(
    cluster: Cache, written: bytes
) -> None:
    RecordSink(cluster, lambda: 0.0).apply(msgspec.Raw(written))
    found = cluster.node_info(NodeName("node")).record.problem
    assert found is not None
    assert "internal error" not in found
    assert len(found) < 300


NESTED = msgspec.Raw(b'{"metadata":{"name":"nested"},"spec":' + b"[" * 5000 + b"]" * 5000 + b"}")


def test_an_object_of_which_not_even_the_name_can_be_read_costs_no_other(cluster: Cache) -> None:
    RecordSink(cluster, lambda: 0.0).replace([NESTED, raw(small())], "1")
    assert cluster.node_info(NodeName("node")).topology is not None
    PodSink(cluster, lambda: 0.0).replace([NESTED, raw(pod(1, name="a"))], "1")
    assert cluster.snapshot().pod_named("default", "a") is not None
    node = {"metadata": {"name": "bare"}, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}
    NodeSink(cluster).replace([NESTED, raw(node)], "1")
    assert "bare" in {info.name for info in cluster.snapshot().nodes}


@pytest.mark.parametrize("name", EXCEEDING)
def test_every_record_that_an_agent_writes_is_read(cluster: Cache, name: str) -> None:
    """As it comes from the API server, which adds defaults."""
    record = EXCEEDING[name][1].record()
    fill(schema(), record)
    RecordSink(cluster, lambda: 0.0).apply(raw(record))
    found = cluster.node_info(NodeName("n")).record.problem
    assert found is None or "are read" not in found


def test_an_agent_writes_less_than_is_read() -> None:
    """Defaults of 2,016 links are 60 kB."""
    assert LARGEST_RECORD + 100_000 <= MAX_RECORD


HELD = [{"podUID": f"{i}", "deviceIds": ["a", "b"]} for i in range(4096)]
OWNED = [
    {"namespace": "n", "pod": f"{i}", "memory": [{"type": "m", "bytes": 1, "numaNodes": [0]}] * 9}
    for i in range(2000)
]


@pytest.mark.parametrize(
    "status", [{"allocations": HELD}, {"exclusive": OWNED}], ids=["allocations", "exclusive"]
)
def test_the_check_of_a_long_list_is_interrupted_at_each_part(status: Object) -> None:
    """CPython lets other threads go on where a function of Python begins, and pydantic's core is
    none."""
    begun = calls(lambda: wire.Status.model_validate(status), wire.IN_TURNS.func.__code__)
    assert begun >= len(*status.values())
