"""Read a file with a Pod, or with an object that makes pods, and note what has no effect in it.

Annotations have an effect only on the pod. Those of a Deployment itself, labels, and keys with
another prefix request nothing, and no component of the cluster reports that. So notes report it
here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

from scheduler_extender.annotations import (
    IMPLICIT_NAME,
    KEYS,
    MANAGED,
    OURS_TO_WRITE,
    PREFIX,
    UNASKED,
    Malformed,
    PodRequest,
    is_unasked,
    parse,
)
from scheduler_extender.exclusive import containers_with_roles
from scheduler_extender.explain.groupfit import Wanted
from scheduler_extender.explain.wording import listed, not_joined
from scheduler_extender.files.clusterfile import read_pod
from scheduler_extender.files.podtemplates import (
    ARGO,
    KNOWN,
    MAKES,
    Made,
    mapping,
    misshapen,
    name_in,
    pods_made_by,
)
from scheduler_extender.quantities import cut, quantity
from scheduler_extender.state.pods.attributes import SchedulingAttributes, requests_of
from scheduler_extender.state.pods.selecting import eligible_nodes_of
from scheduler_extender.wire import Pod, Resources
from topology.codec import shortened
from topology.core.requests import GpuRequest
from topology.yamltext import YamlTextError, documents

LIKE_OURS = 0.75  # similarity (0 to 1) from which on a prefix counts as a misspelling of ours
LWS_GROUP = "leaderworkerset/"  # the beginning of the names of groups that a LeaderWorkerSet makes
MAX_NOTES = 10
MOST_PODS = 4096  # pods of one file, as many as a group may have members


class PodFileError(ValueError):
    """The file has no pod that can be used. The message is one line."""


class NoPodError(PodFileError):
    """The text can be read, but nothing in it makes a pod that asks for GPUs."""


class NotJudgedError(NoPodError):
    """The only pods of the text take the devices of claims, which no file has."""


def read(text: str) -> Wanted:
    """Return the one pod of a YAML text. Raises :class:`PodFileError`.

    The text has a Pod or an object with a pod template: Deployment, StatefulSet, Job, CronJob and
    the like. Other objects, such as a Service, are skipped.
    """
    makers, faults, unjudged = _makers(text)
    if faults:
        raise PodFileError(faults[0])
    if not makers:
        raise NotJudgedError(unjudged[0])
    if len(makers) > 1:
        names = ", ".join(_named(item) for item in makers[:5])
        raise PodFileError(f"exactly one Pod is needed, but there are {len(makers)}: {names}")
    asked = _asked(makers[0], _pod_of(makers[0]) or Made({}, []))
    return replace(asked, notes=(*_left_out(makers[0]), *asked.notes)[:MAX_NOTES])


@dataclass(frozen=True, slots=True)
class Found:
    """The content of a text: the pods that ask for GPUs, and a line for each object that is wrong.

    One more line names pods that already have a node; it is empty if there are none.
    """

    wanted: list[Wanted]
    faults: list[str]
    placed: str = ""


def read_all(text: str) -> list[Wanted]:
    """Return every pod of a YAML text that asks for GPUs, in the order of the text; at least one.

    Raises :class:`PodFileError`, also if a single object is wrong.
    """
    found = read_each(text)
    if found.faults:
        raise PodFileError(found.faults[0])
    return found.wanted


def read_each(text: str) -> Found:
    """Return every pod of a YAML text that asks for GPUs, and the faults of other objects.

    The pods are in the order of the text. Raises :class:`PodFileError` if the text cannot be read,
    and :class:`NoPodError` if it has neither pods nor faults. A note of the first pod names the
    pods that are not evaluated.

    Of an object with several pod templates, each one with a different request is returned.
    """
    makers, faults, unjudged = _makers(text)
    placed: dict[str, None] = {}
    claiming: dict[str, None] = {}
    wanted: list[Wanted] = []
    for number, item in enumerate(makers, 1):
        of_item: dict[object, Wanted] = {}
        for made in pods_made_by(item):
            spec = mapping(made.pod.get("spec"))
            if "nodeName" in spec:
                placed |= {_named(item): None} if asks_for_gpus(made.pod) else {}
                continue
            if not asks_for_gpus(made.pod):
                claiming |= {_named(item): None} if spec.get("resourceClaims") else {}
                continue
            try:
                asked = _counted(item, made, _asked(item, made, several=len(makers) > 1))
            except NotJudgedError:
                claiming[_named(item)] = None
            except PodFileError as error:
                faults.append(str(error))
            else:
                before = of_item.get(asked.alike)
                of_item[asked.alike] = before.and_as_many_as(asked) if before else asked
        maker = f"{_named(item)} (object {number})" if len(of_item) > 1 else ""
        wanted += [replace(each, maker=maker) for each in of_item.values()]
    on_nodes = f"not evaluated because already on a node: {listed([*placed])}" if placed else ""
    if claiming:
        who = f"{listed([*claiming])}: not evaluated, because claims are not read from files"
        unjudged.append(f"{who}; in the cluster, gpu-topology why POD shows what a pod gets")
    if not wanted and not faults:
        if len(makers) == 1 and not unjudged and not placed:
            return Found([read(text)], [])
        raise _nothing(makers, unjudged, on_nodes)
    for first in wanted[:1]:
        wanted[0] = replace(first, notes=(*unjudged, *first.notes)[:MAX_NOTES])
    return Found(wanted, faults, on_nodes)


def _nothing(makers: list[object], unjudged: list[str], on_nodes: str) -> NoPodError:
    """Return why there is no pod to evaluate."""
    if unjudged:
        return NotJudgedError("; ".join(unjudged[:MAX_NOTES]))
    names = ", ".join(_named(item) for item in makers[:5])
    return NoPodError(
        on_nodes or f"no pod requests a GPU (nvidia.com/gpu), so there is nothing to check: {names}"
    )


def _makers(text: str) -> tuple[list[object], list[str], list[str]]:
    """Return the objects that are or make pods, the faults of broken ones, and further notes.

    A note names an object whose operator makes another object, which makes the pods. Of the three
    lists at least one is not empty. Raises :class:`PodFileError`.
    """
    try:
        objects = [d for d in documents(text) if d is not None]
    except YamlTextError as error:
        raise PodFileError(str(error)) from error
    items = [item for document in objects for item in items_in(document)]
    faults = [f"{_named(item)}: {fault}" for item in items if (fault := misshapen(item))]
    makers = [item for item in items if not misshapen(item) and _pod_of(item) is not None]
    if len(makers) > MOST_PODS:
        raise PodFileError(
            f"at most {MOST_PODS:,} pods are allowed in a file, but there are {len(makers):,}"
        )
    kinds = ((item, MAKES.get(_kind_of(item))) for item in items)
    unjudged = [
        f"{_named(it)}: its operator creates a {made}: check that {made}"
        for it, made in kinds
        if made
    ]
    if not makers and not faults and not unjudged:
        raise NoPodError(_no_pod(items))
    return makers, faults, unjudged


def _asked(item: object, made: Made, *, several: bool = False) -> Wanted:
    """Return the request of a pod with the notes on the object that makes it.

    With ``several`` objects, errors name theirs. Raises :class:`PodFileError`.
    """
    whose = f"{_named(item)}: " if several else ""
    try:
        pod = read_pod(made.pod)
    except ValueError as error:
        raise PodFileError(f"{whose}{error}") from error
    unreadable = _unreadable(pod)
    if unreadable:
        raise PodFileError(f"{whose}{unreadable}")
    request = parse(pod)
    if isinstance(request, Malformed):
        raise PodFileError(f"{whose}{request.reason}")
    if request is None and pod.spec.resource_claims:
        once = "once the pod exists, gpu-topology why shows which GPUs it gets"
        raise NotJudgedError(f"{whose}the pod requests the GPUs of its claims; {once}")
    if request is None:
        raise NoPodError(
            f"{whose}the pod requests no GPU (nvidia.com/gpu), so there is nothing to check"
        )
    written = [*notes_on(_kind_of(item), made.pod, made.outside), *_ineffective(pod)]
    written += filter(None, [not_joined(request.request, request.group_ref)])
    notes = tuple(written[:MAX_NOTES])
    name, going = pod.metadata.name, eligible_nodes_of(pod.spec)
    asked = requests_of(pod, MANAGED)
    attributes = SchedulingAttributes(
        priority=pod.spec.priority or 0, requests=asked, eligible_nodes=going
    )
    return Wanted(name, request.request, notes, request.group_ref, attributes, made.copies or 1)


def _counted(item: object, made: Made, wanted: Wanted) -> Wanted:
    """Return the request with a note if not all pods of an object are counted."""
    groups = mapping(mapping(item).get("spec")).get("replicas")
    if made.copies is None:
        said = "the number of its pods is unknown, so one is evaluated"
    elif wanted.group_ref is None or not wanted.group_ref.group.name.startswith(LWS_GROUP):
        return wanted
    elif isinstance(groups, int) and groups > 1:
        said = f"it creates {groups:,} groups, but only one is evaluated"
        wanted = replace(wanted, copies=max(1, wanted.copies // groups))
    else:
        return wanted
    return replace(wanted, notes=(f"{_named(item)}: {said}", *wanted.notes)[:MAX_NOTES])


def _ineffective(pod: Pod) -> Iterator[str]:
    """Yield notes on annotations of ours that have no effect, and on amounts that are refused.

    The API server refuses requests of GPUs without equal limits.
    """
    given = pod.metadata.annotations or {}
    if f"{PREFIX}shape" in given and not given.keys() & {f"{PREFIX}link", f"{PREFIX}min-nvlinks"}:
        yield f"annotation {PREFIX}shape has no effect without {PREFIX}link or min-nvlinks"
    for key in sorted(given.keys() & OURS_TO_WRITE) if pod.spec.node_name is None else ():
        yield (
            f"annotation {key} is written by the extender: it has no effect on a pod and is "
            "overwritten"
        )
    if is_unasked(pod, MANAGED):
        yield UNASKED
    for container, _ in containers_with_roles(pod):
        resources = container.resources or Resources()
        limits = resources.limits or {}
        for name, amount in (resources.requests or {}).items():
            if name.startswith("nvidia.com/") and str(limits.get(name, "")) != str(amount):
                yield (
                    f"container {cut(container.name)}: the API server rejects "
                    f"requests.{cut(name)} without an equal number under limits"
                )


def _unreadable(pod: Pod) -> str:
    """Return the first amount of CPU or memory that is no quantity.

    An API server refuses such a pod.
    """
    for container, _ in containers_with_roles(pod):
        resources = container.resources or Resources()
        for kind, amounts in (("limits", resources.limits), ("requests", resources.requests)):
            for name in ("cpu", "memory"):
                try:
                    quantity(str((amounts or {}).get(name, "0")))
                except ValueError as error:
                    return f"container {cut(container.name)}: {kind}.{name}: {error}"
    return ""


def items_in(document: object) -> list[object]:
    """Return the objects of a document: those of a List, or the document itself."""
    items = document.get("items") if isinstance(document, Mapping) else None
    return items if isinstance(items, list) else [document]


def _pod_of(item: object) -> Made | None:
    """Return the pod that an object is or makes; None if it makes none.

    Of several templates it is the first that asks for GPUs.
    """
    made = pods_made_by(item)
    asking = (each for each in made if asks_for_gpus(each.pod))
    return next(asking, made[0] if made else None)


def _named(item: object) -> str:
    top = mapping(item)
    return " ".join(shortened(word).strip("'") for word in (top.get("kind"), name_in(top)))


def _no_pod(items: list[object]) -> str:
    if not items:
        return "a Pod is needed, but the file is empty"
    if not isinstance(items[0], dict):
        return f"a Pod is needed, not {type(items[0]).__name__}"
    if items[0].get("kind") in KNOWN:
        return f"{_named(items[0])}: it has no containers, so it creates no pod"
    kind = shortened(items[0].get("kind"))
    return f"kind: allowed are Pod and objects with a pod template, not {kind}"


def _left_out(item: object) -> Iterator[str]:
    """Yield a note if the object makes pods with other requests than the pod that is read."""
    read = (parse(read_pod(pod)) for pod, *_ in pods_made_by(item) if asks_for_gpus(pod))
    requests = [each.request if isinstance(each, PodRequest) else each for each in read]
    others = [request for request in requests[1:] if request != requests[0]]
    if others:
        told = ", ".join(r.text for r in others if isinstance(r, GpuRequest))
        yield f"{_kind_of(item)} also creates other pods, which are not evaluated here: {told}"


def asks_for_gpus(pod: Mapping[str, Any]) -> bool:
    """Check whether a pod of a file seems to ask for GPUs."""
    spec = str(pod.get("spec"))
    return "nvidia.com/" in spec or IMPLICIT_NAME in spec


def _kind_of(item: object) -> str:
    return shortened(mapping(item).get("kind")).strip("'")


def notes_on(kind: str, pod: Mapping[str, Any], outside: list[object]) -> Iterator[str]:
    """Yield notes on keys in the wrong place.

    They may be on the ``kind`` of object that makes the pod (``outside`` is its metadata), they may
    be labels, or they may be nearly equal to one of our keys.
    """
    for metadata in outside:
        for key in _keys(metadata, "annotations"):
            if key.startswith(PREFIX) or _meant(key):
                of_pods = "spec.podMetadata" if kind in ARGO else "spec…template.metadata"
                yield (
                    f"annotation {key} has no effect on the {kind}; move it to "
                    f"{of_pods}.annotations"
                )
    metadata = pod.get("metadata")
    for key in _keys(metadata, "annotations"):
        meant = _meant(key)
        if meant:
            yield f"annotation {key} has no effect; did you mean {meant}?"
    for holder in (*outside, metadata):
        for key in _keys(holder, "labels"):
            if key.startswith(PREFIX):
                yield f"label {key} has no effect; make it an annotation of the pod"
    for key in _keys(pod, "annotations"):
        if key.startswith(PREFIX):
            yield f"{key} has no effect there; move it to metadata.annotations"


def _keys(holder: object, field: str) -> list[str]:
    keys = mapping(mapping(holder).get(field))
    return sorted(key for key in keys if isinstance(key, str) and len(key) <= 316)


def _meant(key: str) -> str | None:
    """Return our key that the author seems to have meant.

    >>> _meant("gpu-topology.com/link"), _meant("min-nvlinks"), _meant("example.com/link")
    ('gpu-topology.io/link', 'gpu-topology.io/min-nvlinks', None)
    """
    prefix, slash, name = key.rpartition("/")
    ours = PREFIX.rstrip("/")
    word = name.lower()
    if not slash:
        return PREFIX + word if word in KEYS and word not in ("policy", "shape") else None
    if prefix == ours:
        return None
    alike = SequenceMatcher(None, prefix.lower(), ours, autojunk=False).ratio()
    if alike >= LIKE_OURS or (word in KEYS and "gpu" in prefix and "topology" in prefix):
        return PREFIX + (word if word in KEYS else name)
    return None
