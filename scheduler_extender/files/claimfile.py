"""Rewrite a pod file so that the pod gets its GPUs by a ResourceClaim.

A ResourceClaimTemplate is added. It is for nodes with Dynamic Resource Allocation (DRA).
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scheduler_extender.annotations import MANAGED, Malformed, PodRequest, claim_constraints, parse
from scheduler_extender.explain.groupfit import Wanted
from scheduler_extender.files.clusterfile import read_pod
from scheduler_extender.files.podfile import PodFileError, asks_for_gpus, items_in, read
from scheduler_extender.files.podtemplates import ARGO, KSERVE, mapping, name_in, pods_made_by
from scheduler_extender.quantities import quantity
from topology.core.alternatives import Address
from topology.core.dra import DRIVER
from topology.core.requests import Role
from topology.yamltext import documents

WHOLE = MANAGED[0]  # the resource of whole GPUs
GPUS = "gpus"  # the name of the claim in the pod, and of the claim's one request
Held = TypeVar("Held", dict[str, Any], list[Any])


@dataclass(frozen=True, slots=True)
class Claiming:
    """A file's pod, and the file's ``documents``, in which the pod claims its GPUs.

    The claim's template is called ``name``.
    """

    wanted: Wanted
    documents: Sequence[object]
    name: str
    namespace: str | None

    def with_template(
        self, sets: Sequence[Sequence[Address]], device_class: str
    ) -> list[dict[str, Any] | object]:
        """Return the template for GPUs of any of these sets, followed by the documents."""
        metadata = {"name": self.name}
        if self.namespace:
            metadata["namespace"] = self.namespace
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": metadata,
            "spec": {"spec": claim_spec(sets, self.wanted.request.count, device_class)},
        }
        return [template, *self.documents]


def claiming(text: str) -> Claiming:
    """Return the pod of a text with a claim in place of its GPUs.

    All pod templates of the object with the same GPU request get the claim. Raises
    :class:`PodFileError` if no claim can request these GPUs.

    The container still names the resource, with an amount of 0, so that kube-scheduler calls the
    extender about the pod.
    """
    wanted = read(text)
    request = wanted.request
    if request.resource != WHOLE:
        raise PodFileError(f"a claim requests whole GPUs ({WHOLE}), not {request.resource}")
    if len(request.counts) != 1 or request.counts[0][0] is not Role.APP:
        raise PodFileError(
            "exactly one container must request GPUs, and it must not be an init container"
        )
    if not request.required:
        raise PodFileError("the pod has no required constraints, so it needs no claim")
    found = [each for each in documents(text) if each is not None]
    for item in (item for each in found for item in items_in(each)):
        alike = list(_alike(item, wanted))
        if alike and mapping(item).get("kind") in (KSERVE, *ARGO):
            raise PodFileError(f"kind {mapping(item)['kind']}: its pods cannot have claims")
        if alike:
            name = f"{name_in(mapping(item))}-{GPUS}"
            for manifest in {id(each["spec"]): each for each in alike}.values():  # YAML aliases
                _take_claim(manifest, name)
            namespace = mapping(mapping(item).get("metadata")).get("namespace")
            return Claiming(wanted, found, name, namespace)
    raise PodFileError("no pod requests GPUs")


def _alike(item: object, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Yield the pods of an object that have the same GPU request."""
    for manifest, *_ in pods_made_by(item):
        if asks_for_gpus(manifest):
            asks = parse(read_pod(manifest))
            if (
                isinstance(asks, PodRequest)
                and asks.request.without_peers == wanted.request.without_peers
            ):
                yield manifest


def _take_claim(manifest: dict[str, Any], template: str) -> None:
    """Let the container that asks for GPUs take them from a claim of the template.

    Raises :class:`PodFileError`.
    """
    spec = manifest["spec"]
    claims = _part(spec, "resourceClaims", [])
    if any(mapping(each).get("name") == GPUS for each in claims):
        raise PodFileError(f"spec.resourceClaims already has a claim named {GPUS}")
    claims.append({"name": GPUS, "resourceClaimTemplateName": template})
    for container in spec["containers"]:
        resources = mapping(mapping(container).get("resources"))
        limits, requests = (mapping(resources.get(key)) for key in ("limits", "requests"))
        if quantity(str(limits.get(WHOLE) or requests.get(WHOLE) or 0)) > 0:
            _part(resources, "limits", {})[WHOLE] = 0
            requests.pop(WHOLE, None)
            _part(resources, "claims", []).append({"name": GPUS})
    read_again = claim_constraints(read_pod(manifest))
    if isinstance(read_again, Malformed):
        raise PodFileError(read_again.reason)


def _part(holder: dict[str, Any], key: str, empty: Held) -> Held:
    """Return the value of a key in ``holder``.

    If it has another type, put ``empty`` there first.
    """
    if not isinstance(holder.get(key), type(empty)):
        holder[key] = empty
    found: Held = holder[key]
    return found


def claim_spec(
    sets: Sequence[Sequence[Address]], count: int, device_class: str = DRIVER
) -> dict[str, Any]:
    """Return the spec of a claim for ``count`` GPUs of any one of these sets."""
    alternatives = [
        {
            "name": f"set-{number}",
            "deviceClassName": device_class,
            "selectors": [{"cel": {"expression": selector(addresses)}}],
            "allocationMode": "ExactCount",
            "count": count,
        }
        for number, addresses in enumerate(sets)
    ]
    return {"devices": {"requests": [{"name": GPUS, "firstAvailable": alternatives}]}}


def selector(addresses: Sequence[Address]) -> str:
    """Return the CEL expression for the GPUs at these addresses.

    >>> selector([("A100", "0000:07:00.0")]).partition(" && ")[0]
    'device.attributes["gpu.nvidia.com"].productName == "A100"'
    """
    by_product = defaultdict[str, list[str]](list)
    for product, address in addresses:
        by_product[product].append(address)
    terms = [
        f'device.attributes["{DRIVER}"].productName == {json.dumps(product)} && '
        f'device.attributes["resource.kubernetes.io"].pciBusID in {json.dumps(each)}'
        for product, each in by_product.items()
    ]
    return terms[0] if len(terms) == 1 else " || ".join(f"({term})" for term in terms)
