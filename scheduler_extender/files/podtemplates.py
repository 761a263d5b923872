"""Find the pods that an object makes.

The object is a Pod, has pod templates, or is one of KServe's or Argo's.

A template is any mapping with containers under ``template.spec``, wherever it stands in the
object's spec. So Deployments, Jobs, JobSets and PyTorchJobs are read without a list of kinds.
KServe's InferenceService and Argo's workflows have no such templates and are read by their own
rules.

The number of pods that a template makes is the product of the numbers on the path to it, such as
the replicas of a replicated Job and the parallelism of each.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scheduler_extender.groupreference import JOB_LABEL, SOURCES
from topology.codec import shortened

_LOOPS = ("withItems", "withParam", "withSequence")
MAX_DEPTH = 12  # depth in an object to which pod templates are searched
ARGO = ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow")
KSERVE = "InferenceService"
# Kinds without a pod template, and the kind that their operators make from them.
MAKES = {
    "NIMService": "Deployment",
    "NIMCache": "Job",
    "TrainJob": "JobSet",
    "PodCliqueSet": "Pod",
    "PodClique": "Pod",
}

KNOWN = (
    *(KSERVE, *ARGO, "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"),
    *("DaemonSet", "Job", "CronJob", "PodTemplate"),
)
# Kinds that make one pod of a template if no number is written.
ONE_EACH = {
    *("Pod", "PodTemplate", "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"),
    *("Job", "CronJob", "JobSet", "LeaderWorkerSet", "RayCluster", "RayJob", "RayService"),
    *("MPIJob", "PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "Notebook"),
}

MOST_REPLICAS = 2**31 - 1  # of one object; the API server accepts no more
# The types of the fields on the path to a container, in the known kinds.
_FORMS: dict[str, type] = {
    **dict.fromkeys(("spec", "template", "jobTemplate", "workflowSpec"), dict),
    **dict.fromkeys(("predictor", "transformer", "explainer", "workerSpec", "model"), dict),
    **dict.fromkeys(("container", "script", "containerSet"), dict),
    **dict.fromkeys(("containers", "initContainers", "sidecars", "templates"), list),
}


class Made(NamedTuple):
    """A pod that an object makes."""

    pod: dict[str, Any]
    outside: list[object]  # the metadata around it that is not the pod's
    copies: int | None = 1  # pods at one time; None if unknown


def pods_made_by(item: object) -> list[Made]:
    """Return the pods that an object is or makes."""
    top = mapping(item)
    kind = top.get("kind")
    if kind == "Pod":
        metadata = mapping(top.get("metadata"))
        if metadata.get("generateName") and not metadata.get("name"):
            top = {**top, "metadata": {**metadata, "name": name_in(top)}}
        return [Made(top, [])]
    if kind == KSERVE:
        return list(_served(top))
    if kind in ARGO:
        return list(_steps(top))
    at = top if kind == "PodTemplate" else top.get("spec")
    outside = [top.get("metadata")]
    name = name_in(top)
    added = _added(top, kind, name)
    usual = 1 if isinstance(kind, str) and kind in ONE_EACH else None
    return [
        Made(_made(template, name, added), around, usual if copies is None else copies or None)
        for template, around, copies in _templates(at, outside)
    ]


def misshapen(item: object) -> str:
    """Return the first field of a known kind's object that cannot lead to a container; else empty.

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
    """Return the value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, dict) else {}


def name_in(top: Mapping[str, Any]) -> str:
    """Return the name of an object, or the beginning of its generated name."""
    metadata = mapping(top.get("metadata"))
    return str(
        metadata.get("name") or str(metadata.get("generateName", "")).rstrip("-") or "unnamed"
    )


def _templates(
    at: object, outside: list[object], copies: int | None = None, depth: int = 0
) -> Iterator[Made]:
    """Yield the pod templates below a part of an object.

    Each has the metadata around it and the number of pods: None if no number is written, 0 if one
    cannot be read.
    """
    if depth > MAX_DEPTH:
        return
    if isinstance(at, list):
        for part in at:
            yield from _templates(part, outside, copies, depth + 1)
    fields = mapping(at)
    copies = _times(copies, _copies(fields))
    for key, part in fields.items():
        inner = mapping(part)
        here = copies
        if key == "workerTemplate" and "size" in fields:  # of a LeaderWorkerSet
            less = 1 if "leaderTemplate" in fields else 0
            here = _times(copies, _number(fields["size"], less))
        named = isinstance(key, str) and key.lower().endswith("template")
        if named and (
            isinstance(mapping(inner.get("spec")).get("containers"), list)
            or (key == "template" and set(inner) <= {"metadata", "spec"} and "spec" not in inner)
        ):
            yield Made(inner, outside, here)
        elif isinstance(part, (dict, list)) and key not in ("volumeClaimTemplates", "status"):
            around = [*outside, inner["metadata"]] if "metadata" in inner else outside
            yield from _templates(part, around, here, depth + 1)


def _copies(at: Mapping[str, Any]) -> int | None:
    """Return how many copies of a part an object describes; None if it does not say."""
    counts = [at[key] for key in ("replicas", "minReplicas") if at.get(key) is not None][:1]
    counts += [at[key] for key in ("numOfHosts", "count") if at.get(key) is not None]
    if at.get("parallelism") is not None:
        counts.append(at["parallelism"])
        if at.get("completions") is not None and _number(at["completions"]):
            counts[-1] = min(at["completions"], at["parallelism"], key=_number)
    found: int | None = None
    for each in counts:
        found = _times(found, _number(each))
    return found


def _number(value: object, less: int = 0) -> int:
    """Return a number of copies, at least one; 0 if it cannot be read."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_REPLICAS:
        return 0
    return max(1, value - less)


def _times(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one * other


def _added(top: Mapping[str, Any], kind: object, name: str) -> dict[str, dict[str, str]]:
    """Return the labels and annotations by which a controller makes its pods a group."""
    if kind in ("Job", "CronJob") and "volcano" not in str(top.get("apiVersion")):
        return {"labels": {JOB_LABEL: name}}
    source = next((each for each in SOURCES if each.name == str(kind).lower()), None)
    if source is None or source.label == JOB_LABEL:
        return {}
    size = mapping(mapping(top.get("spec")).get("leaderWorkerTemplate")).get("size")
    annotations = {source.size: str(size)} if source.size and size not in (None, 1) else {}
    return {"labels": {source.label: name}, "annotations": annotations}


def _made(
    template: dict[str, Any], name: str, added: Mapping[str, dict[str, str]]
) -> dict[str, Any]:
    inner = template.get("metadata")
    metadata = {"name": name, **inner} if isinstance(inner, dict) else {"name": name}
    for field, values in added.items():  # as its controller does
        given = metadata.get(field) or {}
        if isinstance(given, dict):
            metadata[field] = {**values, **given}
    return {"kind": "Pod", "metadata": metadata, "spec": template.get("spec") or {}}


def _served(top: dict[str, Any]) -> Iterator[Made]:
    """Yield the pods of an InferenceService, whose metadata KServe copies to each of them.

    A component is a pod's spec in which a field such as ``model`` may stand for a container.
    """
    for name in ("predictor", "transformer", "explainer"):
        part = mapping(mapping(top.get("spec")).get(name))
        models = [each for each in part.values() if "resources" in mapping(each)]
        copies = _number(part.get("minReplicas", 1))
        workers = mapping(part.get("workerSpec"))
        nodes = _number(workers.get("pipelineParallelSize", 2), less=1)  # the first is the head
        for spec, of_each in ((part, 1), (workers, nodes)):
            written = spec.get("containers")
            containers = [*(written if isinstance(written, list) else ()), *models]
            models = []
            if containers:
                metadata = _merged(top.get("metadata"), part)
                pod = _pod(f"{name_in(top)}-{name}", metadata, {**spec, "containers": containers})
                yield Made(pod, [], copies * of_each or None)


def _steps(top: dict[str, Any]) -> Iterator[Made]:
    """Yield the pods of an Argo workflow, one for each template that runs containers."""
    spec = mapping(top.get("spec"))
    spec = mapping(spec.get("workflowSpec")) if top.get("kind") == "CronWorkflow" else spec
    written = spec.get("templates")
    templates = [mapping(each) for each in written] if isinstance(written, list) else []
    for each in templates:
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
        pod = _pod(name, metadata, {**usual, **each, "containers": containers})
        yield Made(pod, [top.get("metadata")], _runs(templates, each.get("name")))


def _runs(templates: list[dict[str, Any]], name: object) -> int | None:
    """Return 1 if at most one step of a workflow runs a template, once.

    Otherwise return None, since steps may run beside one another.
    """
    steps = [
        step
        for each in templates
        for step in (*_flat(each.get("steps")), *_flat(mapping(each.get("dag")).get("tasks")))
        if mapping(step).get("template") == name
    ]
    loops = any(key in mapping(step) for step in steps for key in _LOOPS)
    return None if loops or len(steps) > 1 else 1


def _flat(at: object) -> Iterator[object]:
    for each in at if isinstance(at, list) else ():
        yield from each if isinstance(each, list) else [each]


def _merged(*holders: object) -> dict[str, Any]:
    """Merge the labels and annotations of several objects. The later ones win."""
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
