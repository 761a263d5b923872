"""The admin port answers what ``/openapi.json`` says, whatever is asked of it."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import BaseSchema, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from scheduler_extender.kube.sinks import PodSink
from tests.commands import ROOT
from tests.nodes import bridged, pcie, pod, switched
from tests.scheduler_extender.conftest import raw
from tests.scheduler_extender.serving import Running, running
from tests.waiting import PATIENCE
from topology.core.devices import MIB, DeviceId, GpuResource, NodeName, PodUid
from topology.core.report import Allocation, Report
from topology.machines.mig import cut

NVLINK = {"link": "nvlink"}
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    """Nodes of several kinds, pods that run, wait and cannot be read, and a bad record."""
    sliced = cut(switched(name="sliced"), ["3g.20gb", "1g.5gb", "1g.5gb"], gpus=[0])
    shares = GpuResource("nvidia.com/gpu", "time-slicing", 4)
    shared = replace(pcie(2, "shared"), resources=(shares,))
    with running(switched(), pcie(), bridged(), sliced, shared) as found:
        sink = PodSink(found.cluster, lambda: 0.0)
        sink.apply(raw(pod(2, NVLINK, name="runs", uid="r", node="switched", phase="Running")))
        sink.apply(raw(pod(2, NVLINK, name="waits", uid="w")))
        says = {"gpu-memory": "30Gi"}
        sink.apply(raw(pod(1, says, name="says", uid="s", node="shared", phase="Running")))
        held = tuple(
            Allocation(PodUid(uid), "default", uid, "main", shares.name, (DeviceId(device),))
            for uid, device in (("s", "GPU-0::0"), ("nobody", "GPU-0::3"))
        )
        found.cluster.put_record(shared, Report("boot", 2, allocations=held))
        sink.apply(raw(pod(2, {"link": "rope"}, name="odd", uid="o")))
        found.cluster.budgets = ()
        found.cluster.put_problem(NodeName("broken"), "spec: field required")
        yield found


@pytest.fixture(scope="module")
def described(service: Running) -> BaseSchema:
    return schemathesis.openapi.from_dict(service.admin.get("/openapi.json").json())


OPERATIONS = [
    ("/v1/nodes", "GET"),
    ("/v1/nodes/{name}", "GET"),
    ("/v1/explain/{namespace}/{pod}", "GET"),
    ("/v1/snapshot", "GET"),
    ("/v1/reports", "POST"),
]


def test_every_operation_is_tried(described: BaseSchema) -> None:
    found = {(path, method.upper()) for path in described for method in described[path]}
    assert found == set(OPERATIONS)


def test_the_document_is_openapi_with_version_and_licence(service: Running) -> None:
    answer = service.admin.get("/openapi.json").json()
    schemathesis.openapi.from_dict(answer).validate()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert answer["info"]["version"] == project["version"]
    assert answer["info"]["license"]["identifier"] == project["license"]
    assert answer["info"]["description"]


CASES = [
    *((path, method, GenerationMode.POSITIVE) for path, method in OPERATIONS),
    ("/v1/reports", "POST", GenerationMode.NEGATIVE),  # all else takes any text
]


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_every_answer_is_as_described(
    service: Running, described: BaseSchema, path: str, method: str, mode: GenerationMode
) -> None:
    """To requests that the description allows, and to those that it does not."""
    operation = described[path][method]
    # A cluster file has several documents, of which the check of its content would read one.
    checks = CHECKS if path != "/v1/snapshot" else CHECKS[:-1]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    def ask(case: Any) -> None:
        case.call_and_validate(base_url=str(service.admin.base_url), checks=checks)

    ask()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/nodes/switched",
        "/v1/nodes/broken",
        "/v1/nodes/sliced",
        "/v1/nodes/shared",
        "/v1/explain/default/runs",
        "/v1/explain/default/waits",
        "/v1/explain/default/odd",
    ],
)
def test_an_answer_with_something_in_it_is_as_described(
    service: Running, described: BaseSchema, path: str
) -> None:
    (route,) = (
        each for each in described if re.fullmatch(re.sub(r"\{\w+\}", r"[^/]+", each), path)
    )
    answer = requests.get(f"{service.admin.base_url}{path}", timeout=PATIENCE)
    assert answer.status_code == 200
    described[route]["GET"].validate_response(answer)


def test_a_node_says_which_instances_of_its_gpus_are_free(service: Running) -> None:
    found = service.admin.get("/v1/nodes/sliced").json()
    assert found["free"] == [1, 2, 3]
    small, large = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
    assert found["migInstances"] == [
        {"gpu": 0, "resource": small, "profile": "1g.5gb", "instances": 2, "free": 2},
        {"gpu": 0, "resource": large, "profile": "3g.20gb", "instances": 1, "free": 1},
    ]


def test_a_node_names_the_pods_that_share_its_gpus_and_what_they_use(service: Running) -> None:
    found = service.admin.get("/v1/nodes/shared").json()
    gpu = {"resource": "nvidia.com/gpu", "profile": "", "shares": 4, "memory": 46068 * MIB}
    part = 46068 * MIB // 4
    pods = ["default/nobody", "default/says"]
    assert found["sharedGpus"] == [
        {**gpu, "gpu": 0, "free": 2, "used": 30 * 1024 * MIB + part, "pods": pods},
        {**gpu, "gpu": 1, "free": 4, "used": 0, "pods": []},
    ]
