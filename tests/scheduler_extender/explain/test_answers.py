"""Answers about nodes and pods: a pod is not counted against itself, nor a GPU twice."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.explain.answers import Answer, Counts, answers_to
from scheduler_extender.framework.stalewatches import OUT_OF_DATE
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.freshness import Watch
from scheduler_extender.state.groups.groups import NEVER, NO_DOMAIN, TOO_SMALL
from tests.nodes import bridged, pcie, pod, record_of, switched, waiting
from tests.scheduler_extender.serving import Running, running
from tests.scheduler_extender.test_scheduler_requests import hold
from topology.core.links import LinkKind
from topology.core.report import Report
from topology.core.requests import Constraints, GpuRequest, Policy, gpu_request

NVLINK = {"link": "nvlink"}


def rows(service: Running, name: str) -> dict[str, dict[str, Any]]:
    found = service.admin.get(f"/v1/explain/default/{name}").json()["nodes"]
    return {row["node"]: row for row in found}


def see(service: Running, manifest: dict[str, Any]) -> None:
    service.cluster.put_pod(record_of(manifest))


def bind(service: Running, manifest: dict[str, Any], node: str) -> None:
    see(service, manifest)
    assert service.bind(manifest, node) == ""


def test_of_several_reasons_about_the_group_the_most_frequent_one_is_given() -> None:
    found = Counts(9, rejected={NEVER: 2, TOO_SMALL: 6, NO_DOMAIN: 1})
    assert found.headline == (
        "no node takes it: 9 nodes do not suit the pod's group "
        "(6 nodes: the domain cannot hold the pod's whole group)"
    )


def test_a_bound_pod_is_not_counted_against_itself() -> None:
    with running(switched(), bridged()) as service:
        whole = pod(4, {}, name="whole", uid="uid-whole")
        bind(service, whole, "bridged")
        home = rows(service, "whole")["bridged"]
        assert (home["verdict"], home["message"]) == ("guaranteed", "")
        assert home["score"] is None
        other = pod(2, NVLINK, name="other", uid="uid-other")
        see(service, other)
        answer = rows(service, "other")["bridged"]
        assert (answer["verdict"], answer["message"]) == ("not-now", "not enough free GPUs")
        assert answer["score"] is None


def test_a_pod_whose_gpus_are_reported_is_not_counted_against_itself_either() -> None:
    with running(switched(), bridged()) as service:
        hold(service, "bridged", 0, 1, 2, 3, uid="holder")
        found = service.admin.get("/v1/explain/x/holder").json()["nodes"]
        home = {row["node"]: row for row in found}["bridged"]
        assert (home["verdict"], home["message"]) == ("guaranteed", "")


def test_what_is_promised_is_distinguished_from_what_is_free() -> None:
    with running(switched()) as service:
        answer = service.admin.get("/v1/nodes/switched").json()
        assert (answer["free"], answer["promised"], answer["remaining"]) == ([0, 1, 2, 3], 0, 4)
        bind(service, pod(2, NVLINK, name="pair", uid="uid-pair"), "switched")
        answer = service.admin.get("/v1/nodes").json()[0]
        assert (answer["free"], answer["promised"], answer["remaining"]) == ([0, 1, 2, 3], 2, 2)
        assert answer["unacknowledged"] == 1


def test_every_row_that_is_no_promise_says_why() -> None:
    cluster = Cache(lambda: 0.0)
    for node in (switched(), pcie()):
        cluster.put_record(node, None)
    cluster.put_record(bridged(), None)
    asked = gpu_request(2, Constraints(link=LinkKind.NVLINK), Policy.PREFERRED)
    for request in (asked, gpu_request(1)):
        for row in answers_to(cluster.snapshot(), waiting(request)):
            assert row.passes
            assert not row.promises
            assert (row.note, row.message) == ("no topology report", "")


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        pytest.param("/v1/nodes/none", 404, "node none is unknown", id="a node"),
        pytest.param(
            "/v1/explain/x/none", 404, "pod x/none is unknown or requests no GPUs", id="a pod"
        ),
        pytest.param("/nowhere", 404, "Not Found", id="a path"),
    ],
)
def test_what_is_unknown_is_an_error_of_the_same_form_as_all_others(
    path: str, status: int, error: str
) -> None:
    with running(bridged()) as service:
        answer = service.admin.get(path)
        assert (answer.status_code, answer.json()) == (status, {"error": error})


def test_what_a_stale_extender_answers_is_reported() -> None:
    """The answers that it remembers are not those that filter gives now."""
    watches: list[Watch] = []
    cluster = Cache(lambda: 1000.0, watches=lambda: watches)
    cluster.put_record(switched(), Report("boot", 1))

    def answer(request: GpuRequest) -> Answer:
        (row,) = answers_to(cluster.snapshot(), waiting(request))
        return row

    pair = gpu_request(2, Constraints(link=LinkKind.NVLINK))
    assert answer(pair).promises
    watches.append(Watch("pods", 0.0))
    row = answer(pair)
    assert (row.passes, row.message, row.score) == (False, OUT_OF_DATE.message, None)
    assert answer(gpu_request(2)).passes
    row = answer(replace(pair, policy=Policy.PREFERRED))
    assert (row.passes, row.score, row.note) == (True, 0, OUT_OF_DATE.message)
