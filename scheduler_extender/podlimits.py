"""Limits on the lists in a pod's manifest: an API server accepts more than any reasonable pod has.

A pod that exceeds one is refused. The reason names the field, the number and the limit. So the
memory and the time that one pod costs are bounded, and other pods do not pay for it. A takeover
does not wait for such a pod either (:mod:`.kube.bindable`): an API server refuses to change some of
them, and takes half a minute for others.
"""

from collections.abc import Mapping
from typing import Any

from scheduler_extender.wire import Pod, PodSpec

MOST_TOLERATIONS = 128
MOST_LABELS = 256
MOST_ANNOTATIONS = 1024
# Bytes of the annotations, keys and values together. An API server allows 262,144, and refuses our
# own annotations where they would exceed that.
MOST_ANNOTATED = 200_000
# Lines of the nodeSelector; terms and expressions of the required node affinity together. Each of
# them is checked against each node.
MOST_LINES = 128
MOST_VALUES = 2048  # values in that affinity; a list of some hundred host names is reasonable
MOST_CLAIMS = 32  # the pod's own ResourceClaims; each is looked up on each node
MOST_RESOURCES = 256  # different resources that a pod names, in all its containers together
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def exceeded_limit(pod: Pod) -> str | None:
    """Return which limit the pod exceeds; None for every reasonable pod.

    Takes time linear in the size of the pod's manifest.
    """
    spec = pod.spec
    lines, values = _affinity(spec.affinity)
    annotations = pod.metadata.annotations or {}
    for field, said, most in (
        ("metadata.labels", len(pod.metadata.labels or ()), MOST_LABELS),
        ("metadata.annotations", len(annotations), MOST_ANNOTATIONS),
        ("spec.nodeSelector", len(spec.node_selector or ()), MOST_LINES),
        ("spec.tolerations", len(spec.tolerations or ()), MOST_TOLERATIONS),
        ("spec.affinity.nodeAffinity", lines, MOST_LINES),
        ("spec.affinity.nodeAffinity", values, MOST_VALUES),
        ("spec.resourceClaims", len(spec.resource_claims or ()), MOST_CLAIMS),
        ("resources", len(_resources(spec)), MOST_RESOURCES),
    ):
        if said > most:
            return f"{field}: {said} entries; at most {most} are allowed in a pod with GPUs"
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MOST_ANNOTATED:
        return f"metadata.annotations: {size} bytes; at most {MOST_ANNOTATED} are allowed"
    return None


def _affinity(affinity: Mapping[str, Any] | None) -> tuple[int, int]:
    """Count the terms and expressions of a pod's required node affinity, and the values in them."""
    lines = values = 0
    left = [_field(_field(_field(affinity, "nodeAffinity"), _REQUIRED), "nodeSelectorTerms")]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            lines += 1
            left.extend(part.values())
        elif isinstance(part, list):
            values += sum(isinstance(each, str) for each in part)
            left.extend(part)
    return lines, values


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _resources(spec: PodSpec) -> set[str]:
    """Return the names of the resources that a pod names."""
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    named = [spec.overhead]
    for resources in (spec.resources, *(container.resources for container in containers)):
        if resources is not None:
            named += resources.limits, resources.requests
    return {name for amounts in named for name in amounts or ()}
