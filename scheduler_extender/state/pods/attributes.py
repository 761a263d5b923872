"""What evictions depend on: a pod's priority, its controller, and the resources that it frees."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from scheduler_extender.annotations import Managed, Template, once
from scheduler_extender.quantities import cut, quantity
from scheduler_extender.state.pods.selecting import (
    ANY_NODE,
    NO_NODE,
    EligibleNodes,
    eligible_nodes_of,
)
from scheduler_extender.wire import Container, Pod, PodSpec, Resources
from topology.core.devices import NodeName
from topology.core.memo import memoized

Labels = tuple[tuple[str, str], ...]  # a pod's labels, sorted
# Resources with their amounts in thousandths, sorted by name.
Amounts = tuple[tuple[str, int], ...]

# Returns the total requests of the pods without devices on a node, with their number as ``pods``;
# None if that is not known.
Others = Callable[[NodeName], Amounts | None]

_MOST = 2**63


@dataclass(frozen=True, slots=True)
class SchedulingAttributes:
    """A pod as evictions see it."""

    priority: int = 0
    labels: Labels = ()
    # the kind of the owner that creates it again, such as "Job"; empty for none
    controller: str = ""
    requests: Amounts = ()  # what kube-scheduler counts for it, without GPUs
    nominated: NodeName | None = None  # the node that kube-scheduler has nominated it to
    eligible_nodes: EligibleNodes = ANY_NODE  # the nodes that it may be sent to


BARE = SchedulingAttributes()


@once
def attributes_of(template: Template, managed: Managed) -> SchedulingAttributes:
    """Return the attributes of pods of a template, without a nomination.

    ``managed`` are the resources that ``requests`` leaves out. Little is kept of a pod that lists
    too much (:mod:`..podlimits`), and no node is eligible for it.
    """
    pod, sane = template.pod, template.too_much is None
    # The owner that creates the pod again. That of a static pod is its Node, which starts it again
    # on the same node.
    owners = pod.metadata.owner_references or ()
    return SchedulingAttributes(
        pod.spec.priority or 0,
        tuple(sorted((pod.metadata.labels or {}).items())) if sane else (),
        cut(next((each.kind for each in owners if each.controller), "")),
        requests_of(pod, managed) if sane else (),
        eligible_nodes=eligible_nodes_of(pod.spec) if sane else NO_NODE,
    )


OF_A_CLASS = "deviceclass.resource.kubernetes.io/"


def requests_of(pod: Pod, managed: Iterable[str]) -> Amounts:
    """Return what kube-scheduler counts for a pod, without the ``managed`` resources.

    App containers and sidecars run together. An init container runs beside the sidecars that were
    started before it. Requests for the pod as a whole replace the sum of its containers.
    """
    spec = pod.spec
    if len(spec.containers or ()) == 1 and not (
        spec.init_containers or spec.resources or spec.overhead
    ):
        # a faster path, in half the time, for most pods
        amounts = _requests((spec.containers or [])[0])
    else:
        amounts = _whole(spec)
    # A request by the name of a DeviceClass is counted by no node.
    return tuple(
        sorted(
            item
            for item in amounts.items()
            if item[0] not in managed and not item[0].startswith(OF_A_CLASS)
        )
    )


def amounts_of(given: Mapping[str, str | int]) -> Amounts:
    """Return the amounts that a node gives out; nodes of one kind share one value.

    >>> amounts_of({"pods": 110, "cpu": "1500m"})
    (('cpu', 1500), ('pods', 110000))
    """
    return _shared(tuple(sorted((name, str(text)) for name, text in given.items())))


def quantities_of(amounts: Amounts) -> dict[str, str]:
    """Return quantities that :func:`amounts_of` reads as these amounts.

    >>> quantities_of((("cpu", 1500), ("pods", 110000)))
    {'cpu': '1500m', 'pods': '110'}
    """
    return {
        name: f"{amount}m" if amount % 1000 else str(amount // 1000) for name, amount in amounts
    }


def pieces(amounts: Amounts, resource: str) -> int | None:
    """Return how many whole pieces of a resource there are; None if that is not known."""
    thousandths = dict(amounts).get(resource)
    return None if thousandths is None else thousandths // 1000


@memoized
def _shared(given: tuple[tuple[str, str], ...]) -> Amounts:
    return tuple(_amounts(dict(given)).items())


def _whole(spec: PodSpec) -> dict[str, int]:
    """Return what kube-scheduler counts for any pod."""
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers or ():
        asked = _requests(container)
        if container.restart_policy == "Always":
            _add(running, asked)
        else:
            for name, amount in asked.items():
                peak[name] = max(peak.get(name, 0), amount + running.get(name, 0))
    for container in spec.containers or ():
        _add(running, _requests(container))
    amounts = {name: max(running.get(name, 0), peak.get(name, 0)) for name in {*running, *peak}}
    amounts |= _read(spec.resources or Resources())
    _add(amounts, _amounts(spec.overhead or {}))
    return amounts


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _requests(container: Container) -> dict[str, int]:
    return _read(container.resources or Resources())


def _read(resources: Resources) -> dict[str, int]:
    return _amounts({**(resources.limits or {}), **(resources.requests or {})})


def _amounts(given: Mapping[str, str | int | float]) -> dict[str, int]:
    """Return amounts in thousandths, rounded up; an unreadable amount counts as nothing."""
    return {name: amount for name, text in given.items() if (amount := _amount(str(text)))}


@memoized
def _amount(text: str) -> int:
    try:
        amount = ceil(quantity(text) * 1000)
    except ValueError:
        return 0
    return amount if 0 < amount < _MOST else 0
