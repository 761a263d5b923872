"""Read a file with Pods, or with objects that make pods."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from scheduler_extender.annotations import IMPLICIT_NAME, MANAGED, Malformed, parse
from scheduler_extender.exclusive import containers_with_roles
from scheduler_extender.explain.groupfit import Wanted
from scheduler_extender.explain.wording import listed, not_joined
from scheduler_extender.files.clusterfile import read_pod
from scheduler_extender.files.podnotes import misplaced_keys, notes_on_pod
from scheduler_extender.files.podtemplates import (
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
from topology.yamltext import YamlTextError, documents

LWS_GROUP = "leaderworkerset/"  # the beginning of the names of groups that a LeaderWorkerSet makes
MAX_NOTES = 10
MOST_PODS = 4096  # pods of one file, as many as a group may have members

Maker = tuple[object, list[Made]]  # an object that is or makes pods, and these pods


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
        raise PodFileError(
            f"exactly one Pod is needed, but there are {len(makers)}: {_names(makers)}"
        )
    ((item, pods),) = makers
    first, *others = [each for each in pods if asks_for_gpus(each.pod)] or pods
    asked, left_out = _asked(item, first), list[str]()
    for each in others:
        with suppress(NoPodError):
            request = _asked(item, each).request
            left_out += [request.text] if request != asked.request else []
    more = f"{_kind_of(item)} also creates other pods, which are not evaluated here: "
    notes = [f"{more}{', '.join(left_out)}"] if left_out else []
    return replace(asked, notes=(*notes, *asked.notes)[:MAX_NOTES])


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
    placed, claiming = dict[str, None](), dict[str, None]()
    wanted: list[Wanted] = []
    for number, (item, pods) in enumerate(makers, 1):
        of_item: dict[object, Wanted] = {}
        for made in pods:
            spec, asks = mapping(made.pod.get("spec")), asks_for_gpus(made.pod)
            if "nodeName" in spec:
                placed |= {_named(item): None} if asks else {}
                continue
            if not asks:
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
        raise _nothing(makers, unjudged, on_nodes)
    for first in wanted[:1]:
        wanted[0] = replace(first, notes=(*unjudged, *first.notes)[:MAX_NOTES])
    return Found(wanted, faults, on_nodes)


def _nothing(makers: list[Maker], unjudged: list[str], on_nodes: str) -> NoPodError:
    """Return why there is no pod to evaluate. The error of the only object's pod is raised."""
    if unjudged:
        return NotJudgedError("; ".join(unjudged[:MAX_NOTES]))
    for item, pods in makers if len(makers) == 1 and not on_nodes else ():
        _asked(item, pods[0])
    none = f"no pod requests a GPU (nvidia.com/gpu), so there is nothing to check: {_names(makers)}"
    return NoPodError(on_nodes or none)


def _names(makers: list[Maker]) -> str:
    return ", ".join(_named(item) for item, _ in makers[:5])


def _makers(text: str) -> tuple[list[Maker], list[str], list[str]]:
    """Return the objects that are or make pods, the faults of broken ones, and further notes.

    A note names an object whose operator makes another object, which makes the pods. Of the three
    lists at least one is not empty. Raises :class:`PodFileError`.
    """
    try:
        found = [each for each in documents(text) if each is not None]
    except YamlTextError as error:
        raise PodFileError(str(error)) from error
    items = [item for document in found for item in items_in(document)]
    faults = [f"{_named(item)}: {fault}" for item in items if (fault := misshapen(item))]
    makers = [
        (item, pods) for item in items if not misshapen(item) and (pods := pods_made_by(item))
    ]
    if len(makers) > MOST_PODS:
        raise PodFileError(
            f"at most {MOST_PODS:,} pods are allowed in a file, but there are {len(makers):,}"
        )
    unjudged = [
        f"{_named(item)}: its operator creates a {made}: check that {made}"
        for item in items
        if (made := MAKES.get(_kind_of(item)))
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
        _check_amounts(pod)
    except ValueError as error:
        raise PodFileError(f"{whose}{error}") from error
    request = parse(pod)
    if isinstance(request, Malformed):
        raise PodFileError(f"{whose}{request.reason}")
    if request is None and pod.spec.resource_claims:
        raise NotJudgedError(
            f"{whose}the pod requests the GPUs of its claims; once the pod exists, gpu-topology "
            "why shows which GPUs it gets"
        )
    if request is None:
        raise NoPodError(
            f"{whose}the pod requests no GPU (nvidia.com/gpu), so there is nothing to check"
        )
    said = not_joined(request.request, request.group_ref)
    notes = (*misplaced_keys(_kind_of(item), made.pod, made.outside), *notes_on_pod(pod))
    return Wanted(
        pod.metadata.name,
        request.request,
        (*notes, *([said] if said else []))[:MAX_NOTES],
        request.group_ref,
        SchedulingAttributes(
            priority=pod.spec.priority or 0,
            requests=requests_of(pod, MANAGED),
            eligible_nodes=eligible_nodes_of(pod.spec),
        ),
        made.copies or 1,
    )


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


def _check_amounts(pod: Pod) -> None:
    """Raise :class:`ValueError` for an amount of CPU or memory that is no quantity.

    An API server refuses such a pod.
    """
    for container, _ in containers_with_roles(pod):
        resources = container.resources or Resources()
        for kind, amounts in (("limits", resources.limits), ("requests", resources.requests)):
            for name in ("cpu", "memory"):
                try:
                    quantity(str((amounts or {}).get(name, "0")))
                except ValueError as error:
                    raise ValueError(
                        f"container {cut(container.name)}: {kind}.{name}: {error}"
                    ) from error


def items_in(document: object) -> list[object]:
    """Return the objects of a document: those of a List, or the document itself."""
    items = document.get("items") if isinstance(document, Mapping) else None
    return items if isinstance(items, list) else [document]


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


def asks_for_gpus(pod: Mapping[str, Any]) -> bool:
    """Check whether a pod of a file seems to ask for GPUs."""
    spec = str(pod.get("spec"))
    return "nvidia.com/" in spec or IMPLICIT_NAME in spec


def _kind_of(item: object) -> str:
    return shortened(mapping(item).get("kind")).strip("'")
