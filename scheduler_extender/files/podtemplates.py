"""The pods that an object makes: Pods, objects with pod templates, and those of KServe and Argo.

A template is whatever has containers under ``template.spec``, wherever in the object's spec it
stands: Deployments, Jobs, JobSets, PyTorchJobs and others that nobody has listed. KServe's
InferenceService and Argo's workflows have no such templates; they are read by their own rules.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from scheduler_extender.membership import JOB_LABEL
from topology.codec import shortened

MAX_DEPTH = 12  # how deep in an object pod templates are looked for
ARGO = ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow")
KSERVE = "InferenceService"

KNOWN = (
    *(KSERVE, *ARGO, "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"),
    *("DaemonSet", "Job", "CronJob", "PodTemplate"),
)
_FORMS: dict[str, type] = {
    **dict.fromkeys(("spec", "template", "jobTemplate", "workflowSpec"), dict),
    **dict.fromkeys(("predictor", "transformer", "explainer", "workerSpec", "model"), dict),
    **dict.fromkeys(("container", "script", "containerSet"), dict),
    **dict.fromkeys(("containers", "initContainers", "sidecars", "templates"), list),
}
"""What the fields on the way to a container are, in the kinds that are known."""

Made = tuple[dict[str, Any], list[object]]
"""A pod, and the metadata around it that is not the pod's."""


def pods_made_by(item: object) -> list[Made]:
    """The pods that an object is or makes."""
    top = mapping(item)
    kind = top.get("kind")
    if kind == "Pod":
        return [(top, [])]
    if kind == KSERVE:
        return list(_served(top))
    if kind in ARGO:
        return list(_steps(top))
    at = top if kind == "PodTemplate" else top.get("spec")
    outside = [top.get("metadata")]
    job = kind in ("Job", "CronJob")
    name = name_in(top)
    return [
        (_made(template, name, job=job), around) for template, around in _templates(at, outside)
    ]


def misshapen(item: object) -> str:
    """The first field of an object of a known kind that cannot lead to a container; else empty.

    >>> misshapen({"kind": "Deployment", "spec": {"template": {"spec": {"containers": [3]}}}})
    'spec.template.spec.containers[0]: a mapping is needed, not 3'
    """
    top = mapping(item)
    return next(_misshapen(top, ""), "") if top.get("kind") in KNOWN else ""


def _misshapen(at: dict[str, Any], way: str) -> Iterator[str]:
    for key, form in _FORMS.items():
        value = at.get(key)
        parts = value if form is list and isinstance(value, list) else [value]
        for number, part in enumerate(parts if value is not None else []):
            place = f"{way}{key}[{number}]" if part is not value else f"{way}{key}"
            wanted = "a list" if form is list and part is value else "a mapping"
            if wanted == "a list" or not isinstance(part, dict):
                yield f"{place}: {wanted} is needed, not {shortened(part)}"
            else:
                yield from _misshapen(part, f"{place}.")


def mapping(value: object) -> dict[str, Any]:
    """The value itself, or an empty one where another thing was written."""
    return value if isinstance(value, dict) else {}


def name_in(top: Mapping[str, Any]) -> str:
    """The name of an object, or what the names of its like begin with."""
    metadata = mapping(top.get("metadata"))
    return str(
        metadata.get("name") or str(metadata.get("generateName", "")).rstrip("-") or "unnamed"
    )


def _templates(at: object, outside: list[object], depth: int = 0) -> Iterator[Made]:
    """The pod templates below a part of an object, with the metadata around each."""
    if depth > MAX_DEPTH:
        return
    if isinstance(at, list):
        for part in at:
            yield from _templates(part, outside, depth + 1)
    for key, part in mapping(at).items():
        inner = mapping(part)
        if _is_template(key, inner):
            yield inner, outside
        elif isinstance(part, (dict, list)) and key not in ("volumeClaimTemplates", "status"):
            around = [*outside, inner["metadata"]] if "metadata" in inner else outside
            yield from _templates(part, around, depth + 1)


def _is_template(key: object, part: dict[str, Any]) -> bool:
    named = isinstance(key, str) and key.lower().endswith("template")
    return named and (
        isinstance(mapping(part.get("spec")).get("containers"), list)
        or (key == "template" and set(part) <= {"metadata", "spec"} and "spec" not in part)
    )


def _made(template: dict[str, Any], name: str, *, job: bool) -> dict[str, Any]:
    inner = template.get("metadata")
    metadata = {"name": name, **inner} if isinstance(inner, dict) else {"name": name}
    if job:  # as its controller does
        metadata["labels"] = {JOB_LABEL: name, **mapping(metadata.get("labels"))}
    return {"kind": "Pod", "metadata": metadata, "spec": template.get("spec") or {}}


def _served(top: dict[str, Any]) -> Iterator[Made]:
    """The pods of an InferenceService, whose metadata KServe copies to each of them.

    A component is a pod's spec in which a field such as ``model`` stands for a container.
    """
    for name in ("predictor", "transformer", "explainer"):
        part = mapping(mapping(top.get("spec")).get(name))
        models = [each for each in part.values() if "resources" in mapping(each)]
        for spec in (part, mapping(part.get("workerSpec"))):
            written = spec.get("containers")
            containers = [*(written if isinstance(written, list) else ()), *models]
            models = []
            if containers:
                metadata = _merged(top.get("metadata"), part)
                yield (
                    _pod(f"{name_in(top)}-{name}", metadata, {**spec, "containers": containers}),
                    [],
                )


def _steps(top: dict[str, Any]) -> Iterator[Made]:
    """The pods of an Argo workflow: one for each template that runs containers."""
    spec = mapping(top.get("spec"))
    spec = mapping(spec.get("workflowSpec")) if top.get("kind") == "CronWorkflow" else spec
    templates = spec.get("templates")
    for each in map(mapping, templates if isinstance(templates, list) else ()):
        grouped = mapping(each.get("containerSet")).get("containers")
        alone = [each[key] for key in ("container", "script") if key in each]
        containers = grouped if isinstance(grouped, list) else alone
        if not containers:
            continue
        beside = each.get("sidecars")
        containers = [*containers, *(beside if isinstance(beside, list) else ())]
        usual: dict[str, Any] = {
            key: spec[key] for key in ("nodeSelector", "affinity", "tolerations") if key in spec
        }
        metadata = _merged(spec.get("podMetadata"), each.get("metadata"))
        name = f"{name_in(top)}-{each.get('name', '')}".rstrip("-")
        yield (
            _pod(name, metadata, {**usual, **each, "containers": containers}),
            [top.get("metadata")],
        )


def _merged(*holders: object) -> dict[str, Any]:
    """The labels and annotations of several, of which the later ones win."""
    return {
        field: {
            key: value
            for each in holders
            for key, value in mapping(mapping(each).get(field)).items()
        }
        for field in ("labels", "annotations")
    }


def _pod(name: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}
