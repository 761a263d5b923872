"""A file that holds a Pod, or what makes one → the same with a ResourceClaimTemplate that asks for
its GPUs, for nodes with Dynamic Resource Allocation (DRA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler_extender.claims import GPUS, claim_spec
from scheduler_extender.files.podfile import PodFileError, read
from scheduler_extender.files.podtemplates import ARGO, KSERVE, mapping, name_in, pods_made_by
from scheduler_extender.told.together import Wanted
from topology.core.alternatives import Address
from topology.core.requests import Role
from topology.yamltext import documents


def wanted_of(text: str) -> Wanted:
    """The pod of a text, if a claim can ask for its GPUs. Raises :class:`PodFileError`."""
    wanted = read(text)
    request = wanted.request
    if len(request.counts) != 1 or request.counts[0][0] is not Role.APP:
        raise PodFileError("one container that asks for GPUs is needed, and no init container")
    if not request.required:
        raise PodFileError("the pod has no constraints that are required: a claim says nothing new")
    return wanted


def with_claim(
    text: str, wanted: Wanted, sets: Sequence[Sequence[Address]], device_class: str
) -> list[dict[str, Any]]:
    """The template, and the objects of the text, whose pod has a claim of it.

    The container still names the resource, with an amount of 0: so kube-scheduler asks the extender
    about the pod. Raises :class:`PodFileError` where the pod's spec does not stand in the object.
    """
    objects = [each for each in documents(text) if isinstance(each, dict)]
    for item in objects:
        for manifest, _ in pods_made_by(item):
            if item.get("kind") in (KSERVE, *ARGO):
                raise PodFileError(f"kind {item['kind']}: its pods can have no claim")
            if _take_claim(mapping(manifest.get("spec")), wanted):
                name = f"{name_in(item)}-{GPUS}"
                claims = manifest["spec"].setdefault("resourceClaims", [])
                claims.append({"name": GPUS, "resourceClaimTemplateName": name})
                return [_template(name, item, wanted, sets, device_class), *objects]
    raise PodFileError("no pod asks for GPUs")


def _take_claim(spec: dict[str, Any], wanted: Wanted) -> bool:
    """Have the container that asks for the GPUs take them by the claim; false if there is none."""
    for container in spec.get("containers") or ():
        resources = mapping(mapping(container).get("resources"))
        limits = mapping(resources.get("limits"))
        if wanted.request.resource in limits:
            limits[wanted.request.resource] = 0
            mapping(resources.get("requests")).pop(wanted.request.resource, None)
            resources.setdefault("claims", []).append({"name": GPUS})
            return True
    return False


def _template(
    name: str,
    item: dict[str, Any],
    wanted: Wanted,
    sets: Sequence[Sequence[Address]],
    device_class: str,
) -> dict[str, Any]:
    namespace = mapping(item.get("metadata")).get("namespace")
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {"spec": claim_spec(sets, wanted.request.count, device_class)},
    }
