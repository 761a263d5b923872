"""What evictions go by: a pod's importance, its controller, and what it leaves free."""

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
from scheduler_extender.wire import Container, OwnerReference, Pod, PodSpec, Resources
from topology.core.devices import NodeName
from topology.core.memo import memoized

Labels = tuple[tuple[str, str], ...]  # a pod's labels, ascending
# Resources and how much of each, in thousandths, ascending by name.
Amounts = tuple[tuple[str, int], ...]

# What the pods that ask for no devices ask for on a node, all together, and how many they are, as
# ``pods``; None if nobody knows.
Others = Callable[[NodeName], Amounts | None]

_MOST = 2**63


@dataclass(frozen=True, slots=True)
class SchedulingAttributes:
    """A pod as evictions see it."""

    priority: int = 0
    labels: Labels = ()
    controller: str = ""  # the kind of what makes the pod anew, as "Job"; empty for a bare pod
    requests: Amounts = ()  # what kube-scheduler counts for it, GPUs aside
    nominated: NodeName | None = None  # where kube-scheduler has a place for it in mind
    eligible_nodes: EligibleNodes = ANY_NODE  # where it may be sent


BARE = SchedulingAttributes()


def nobody_knows(name: NodeName) -> Amounts | None:
    """:data:`Others` as long as nothing is known."""
    return None


@once
def attributes_of(template: Template, managed: Managed) -> SchedulingAttributes:
    """The standing of pods of a template, nominated to no node; ``managed`` are the resources that
    are not among ``asks``.

    We keep little of a pod that says too much (:mod:`..podlimits`), and it may go nowhere.
    """
    pod, sane = template.pod, template.too_much is None
    return SchedulingAttributes(
        pod.spec.priority or 0,
        tuple(sorted((pod.metadata.labels or {}).items())) if sane else (),
        cut(controller_of(pod.metadata.owner_references or ())),
        requests_of(pod, managed) if sane else (),
        eligible_nodes=eligible_nodes_of(pod.spec) if sane else NO_NODE,
    )


def controller_of(owners: Iterable[OwnerReference]) -> str:
    """The kind of the owner that makes a pod anew; empty if none does.

    A static pod's owner is its Node, which brings it back in the same place.
    """
    return next((owner.kind for owner in owners if owner.controller), "")


OF_A_CLASS = "deviceclass.resource.kubernetes.io/"


def requests_of(pod: Pod, managed: Iterable[str]) -> Amounts:
    """What kube-scheduler counts for a pod, without the ``managed`` resources.

    App containers and sidecars run together; an init container runs beside the sidecars that were
    started before it. What is asked for the pod as a whole takes the place of that.
    """
    spec = pod.spec
    if len(spec.containers or ()) == 1 and not (
        spec.init_containers or spec.resources or spec.overhead
    ):
        amounts = _requests((spec.containers or [])[0])  # most pods, in half the time
    else:
        amounts = _whole(spec)
    # No node counts what is asked for by the name of a DeviceClass.
    return tuple(
        sorted(
            item
            for item in amounts.items()
            if item[0] not in managed and not item[0].startswith(OF_A_CLASS)
        )
    )


def amounts_of(given: Mapping[str, str | int]) -> Amounts:
    """What a node gives out; nodes of one kind share one value.

    >>> amounts_of({"pods": 110, "cpu": "1500m"})
    (('cpu', 1500), ('pods', 110000))
    """
    return _shared(tuple(sorted((name, str(text)) for name, text in given.items())))


def quantities_of(amounts: Amounts) -> dict[str, str]:
    """Quantities that :func:`amounts_of` reads as these.

    >>> quantities_of((("cpu", 1500), ("pods", 110000)))
    {'cpu': '1500m', 'pods': '110'}
    """
    return {
        name: f"{amount}m" if amount % 1000 else str(amount // 1000) for name, amount in amounts
    }


def pieces(amounts: Amounts, resource: str) -> int | None:
    """How much there is of a resource that comes in whole pieces; None if nobody said so."""
    thousandths = dict(amounts).get(resource)
    return None if thousandths is None else thousandths // 1000


@memoized
def _shared(given: tuple[tuple[str, str], ...]) -> Amounts:
    return tuple(_amounts(dict(given)).items())


def _whole(spec: PodSpec) -> dict[str, int]:
    """What kube-scheduler counts for any pod."""
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
    """Amounts in thousandths, rounded up; one that cannot be read counts as nothing."""
    return {name: amount for name, text in given.items() if (amount := _amount(str(text)))}


@memoized
def _amount(text: str) -> int:
    try:
        amount = ceil(quantity(text) * 1000)
    except ValueError:
        return 0
    return amount if 0 < amount < _MOST else 0
