"""Pods whose containers ask for GPUs and run nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

PODS = "/api/v1/namespaces/default/pods"


def gpu_pod(
    name: str,
    containers: Sequence[int],
    *,
    init: Sequence[int] = (),
    sidecars: Sequence[int] = (),
    node: str | None = None,
    finish_after: float | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A pod with one container per count of GPUs, named ``c0``, ``c1`` ….

    Init containers are ``i0``, ``i1`` …: first the ``sidecars``, which stay, then the ordinary
    ``init`` ones, which end at once. ``node`` binds the pod without a scheduler. After
    ``finish_after`` seconds its containers end and it has Succeeded; None lets it run.
    Annotations come without our prefix.
    """
    first = [_container("", n, None) | {"restartPolicy": "Always"} for n in sidecars]
    first += [_container("", n, 0) for n in init]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "initContainers": [c | {"name": f"i{i}"} for i, c in enumerate(first)],
        "containers": [_container(f"c{i}", n, finish_after) for i, n in enumerate(containers)],
    }
    if node is not None:
        spec["nodeName"] = node
    prefixed = {f"gpu-topology.io/{key}": value for key, value in (annotations or {}).items()}
    metadata = {"name": name, "annotations": prefixed}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(name: str, gpus: int, finish_after: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "image": "example/work"}
    if gpus:
        found["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    if finish_after is not None:
        found["env"] = [{"name": "FINISH_AFTER", "value": f"{finish_after:g}s"}]
    return found
