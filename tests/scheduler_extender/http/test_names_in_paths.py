"""Names that come from outside become parts of paths on the API server, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_extender.wire import BindingArgs
from tests.nodes import pod, switched
from tests.scheduler_extender.serving import running
from topology.kubeapi.apiserver import ApiMisconfigured, path

GOOD = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "node"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("PodName", "../../../nodes/n"),
        ("PodName", ".."),
        ("PodName", ""),
        ("PodName", "a" * 254),
        ("PodName", "a/b"),
        ("PodName", "a%2fb"),
        ("PodName", "A"),
        ("PodName", "a\n"),
        ("PodName", "a..b"),
        ("PodNamespace", "kube.system"),
        ("PodNamespace", "x" * 64),
        ("PodNamespace", "../x"),
        ("PodUID", ""),
        ("PodUID", "a b"),
        ("PodUID", "ä"),
        ("PodUID", "u" * 129),
        ("Node", "-n"),
        ("Node", "n\x00"),
        ("Node", "nodes/x"),
    ],
)
def test_a_bind_with_a_name_that_is_none_is_refused(field: str, value: str) -> None:
    with running(switched(4, "node")) as service:
        service.filter(pod(2, name="p", uid="u"), "node")
        answer = service.http.post("/scheduler/bind", json={**GOOD, field: value})
        assert answer.status_code == 200
        error = answer.json()["Error"]
        assert error.startswith(f"{field}: allowed are ")
        assert len(error) < 200
        assert list(service.cluster.snapshot().assumed.values()) == []
        assert service.http.post("/scheduler/bind", json=GOOD).json() == {"Error": ""}


@pytest.mark.parametrize("name", ["p", "p-1.x", "0", "a" * 253])
def test_a_name_that_kubernetes_takes_is_taken(name: str) -> None:
    assert BindingArgs(name, "team-a", "7f9c…".replace("…", "-1"), name).problem() is None


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_path_has_as_many_parts_as_were_given(namespace: str, name: str) -> None:
    try:
        found = path("/api/v1/namespaces", namespace, "pods", name)
    except ApiMisconfigured:
        return
    parts = found.split("/")
    assert len(parts) == 7
    assert not {".", "..", ""} & set(parts[1:])
    assert found.isascii()
    assert not set(found) & set("?#\\ ")


@pytest.mark.parametrize("part", ["..", ".", "", "a/b", "a%2Fb", "../../nodes"])
def test_a_part_that_leads_elsewhere_is_no_part(part: str) -> None:
    with pytest.raises(ApiMisconfigured):
        path("/api/v1/namespaces", part, "pods", "p")
