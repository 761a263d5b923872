"""Pods that are passed over without being decoded are pods that decoding would make nothing of."""

import json
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from scheduler_extender.annotations import MANAGED, TERM, asks_for_any
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import pod_record
from scheduler_extender.wire import pod_decoder

CPU = {"limits": {"cpu": "1"}}


def manifest(**parts: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "resources": CPU}], **parts.pop("spec", {})}
    meta = {"name": "p", "namespace": "d", "uid": "u", **parts.pop("metadata", {})}
    return {"metadata": meta, "spec": spec, **parts}


def with_gpus(resource: str) -> list[dict[str, Any]]:
    """Every place in which a pod may ask for a resource, or have it."""
    gpus = {"limits": {resource: "1"}}
    mapping = [{"containerName": "main", "resourceName": resource}]
    claim = {"extendedResourceClaimStatus": {"requestMappings": mapping}}
    return [
        manifest(spec={"containers": [{"name": "main", "resources": gpus}]}),
        manifest(spec={"containers": [{"name": "main", "resources": {"requests": {resource: 1}}}]}),
        manifest(spec={"initContainers": [{"name": "first", "resources": gpus}]}),
        manifest(spec={"resources": gpus}),
        manifest(spec={"containers": [{"name": "main", "resources": gpus}]}, status=claim),
    ]


OTHERS = [
    manifest(),
    manifest(metadata={"annotations": {"gpu-topology.io/link": "nvlink"}}),
    manifest(spec={"containers": [{"name": "main", "resources": {"limits": {"amd.com/gpu": 1}}}]}),
]


def taken(found: dict[str, Any]) -> bool:
    """Whether the sink decodes the pod. Decoding a broken phase fails, and the sink reports it."""
    broken = {**found, "status": {**found.get("status", {}), "phase": 1}}
    with capture_logs() as logs:
        PodSink(Cache(lambda: 0.0)).apply(msgspec.Raw(json.dumps(broken).encode()))
    return [line["event"] for line in logs] == ["object cannot be read"]


def matters(found: dict[str, Any]) -> bool:
    """Whether anything would come of decoding it."""
    pod = pod_decoder.decode(json.dumps(found).encode())
    return pod_record(pod, MANAGED) is not None or asks_for_any(pod, MANAGED)


@pytest.mark.parametrize("resource", MANAGED)
def test_every_pod_that_asks_for_gpus_is_decoded(resource: str) -> None:
    pods = with_gpus(resource)
    assert any(map(matters, pods))
    assert all(map(taken, pods))


def test_the_mark_of_a_term_is_decoded() -> None:
    assert taken(manifest(metadata={"annotations": {TERM: "3 somebody"}}))


@pytest.mark.parametrize("found", OTHERS)
def test_undecoded_pods_ask_for_nothing_of_ours(found: dict[str, Any]) -> None:
    assert not taken(found)
    assert not matters(found)
