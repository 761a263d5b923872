"""Who holds which devices: the kubelet's PodResources joined to the pods of the API server.

PodResources names pods by namespace and name; a report names them by UID. A name is not enough: a
pod deleted by force leaves the API server at once and the kubelet later, and its StatefulSet makes
another of the same name meanwhile. So, per name:

* The kubelet lists every active pod, so two entries are the old pod and the new one; the old one is
  the entry that still holds what it held.
* One entry is the new pod's once the kubelet has acknowledged that pod (``status.startTime`` is set
  after admission) or it holds something else than the old one did.
* Before anybody was ever listed, an entry is nobody's until its pod is acknowledged.

Ordinary init containers never appear, though they hold devices until the pod ends. Containers get
their devices one after the other, so an entry can show half a pod.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation

GPU_DRIVER = "gpu.nvidia.com"
"""The DRA driver whose devices are GPUs."""

PodName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one container holds of one resource. Under DRA the resource is the driver's name."""

    container: str
    resource: str
    device_ids: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One pod as the kubelet lists it, with the GPU devices of its containers."""

    namespace: str
    name: str
    held: tuple[Held, ...] = ()

    @property
    def key(self) -> PodName:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod of the node as the API server has it.

    ``wants`` is how many devices each app and sidecar container asks for, by container and
    resource. ``acknowledged`` says that the kubelet has decided over its admission; ``ended`` that
    it has reached Succeeded or Failed.
    """

    uid: PodUid
    namespace: str
    name: str
    wants: Mapping[tuple[str, str], int] = field(default_factory=dict)
    acknowledged: bool = False
    deleting: bool = False
    ended: bool = False

    @property
    def key(self) -> PodName:
        """Namespace and name."""
        return self.namespace, self.name


Holdings = Mapping[PodUid, Entry]


def join(
    entries: Sequence[Entry], pods: Mapping[PodUid, NodePod], before: Holdings | None
) -> tuple[dict[PodUid, Entry], list[Entry]]:
    """Entries by pod UID, and those with devices of which nobody can tell whose they are.

    ``before`` is the last join: whoever was listed under a UID is known by it until it goes. None
    is the first one: then an entry may be of somebody who has left the API server already, and
    belongs to a pod only once the kubelet has acknowledged that pod.
    """
    listed: defaultdict[PodName, list[Entry]] = defaultdict(list)
    for entry in entries:
        listed[entry.key].append(entry)
    present = {pod.key: pod for pod in pods.values()}
    former: defaultdict[PodName, list[PodUid]] = defaultdict(list)
    for uid, entry in (before or {}).items():
        if uid not in pods:
            former[entry.key].append(uid)
    found: dict[PodUid, Entry] = {}
    strangers: list[Entry] = []
    for key, group in listed.items():
        rest = group
        pod = present.get(key)
        known = former[key]
        if pod is not None and before is None and not pod.acknowledged:
            strangers += [entry for entry in rest if entry.held]
            continue
        # How many of them can be former pods': all but the present one's, if it is sure to be here.
        most = len(rest) - (1 if pod is not None and pod.acknowledged else 0)
        for uid in known[:]:
            same = next((e for e in rest if before and e.held == before[uid].held), None)
            if same is not None and most > 0:
                found[uid], rest = same, _without(rest, same)
                known.remove(uid)
                most -= 1
        for entry in rest:
            if pod is not None and (len(rest) == 1 or not known or most <= 0):
                found[pod.uid], pod = entry, None
            elif known and most > 0:
                found[known.pop(0)] = entry
                most -= 1
            elif entry.held:
                strangers.append(entry)
            rest = _without(rest, entry)
    return found, strangers


def _without(entries: list[Entry], entry: Entry) -> list[Entry]:
    """The rest, one equal entry taken out."""
    rest = list(entries)
    rest.remove(entry)
    return rest


def whole(pod: NodePod, entry: Entry | None, served: Collection[str] | None = None) -> bool:
    """Whether every app and sidecar container of the pod has the devices that it asks for.

    Of the resources in ``served`` only, where that is given.
    """
    got: Counter[tuple[str, str]] = Counter()
    for held in entry.held if entry else ():
        got[held.container, held.resource] += len(held.device_ids)
    return all(
        got[key] >= count for key, count in pod.wants.items() if served is None or key[1] in served
    )


def unsettled(
    joined: Holdings, pods: Mapping[PodUid, NodePod], served: Collection[str] | None = None
) -> frozenset[PodUid]:
    """The pods of which news is due: not wholly shown yet, or on their way out and still shown.

    ``served`` are the resources that the kubelet hands out; what a pod wants of others, another
    plugin's for one, is not waited for. None is all.
    """
    coming = {
        pod.uid
        for pod in pods.values()
        if (served is None or any(resource in served for _, resource in pod.wants))
        and not pod.ended
        and not whole(pod, joined.get(pod.uid), served)
    }
    leaving = {
        uid
        for uid, entry in joined.items()
        if entry.held and (uid not in pods or pods[uid].ended or pods[uid].deleting)
    }
    return frozenset(coming | leaving)


def vanished(
    joined: Holdings, before: Holdings, pods: Mapping[PodUid, NodePod]
) -> frozenset[PodUid]:
    """Pods that held devices, hold none now, and are alive for all that the API server knows.

    Just after its start a kubelet lists no pods for a moment, with all devices allocatable.
    """
    return frozenset(
        uid
        for uid, entry in before.items()
        if entry.held
        and not (uid in joined and joined[uid].held)
        and uid in pods
        and not pods[uid].ended
        and not pods[uid].deleting
    )


def allocations(joined: Holdings, strangers: Sequence[Entry] = ()) -> tuple[Allocation, ...]:
    """The report's allocations, in an order that depends on nothing but them."""
    named = [(uid, entry) for uid, entry in joined.items()]
    unknown = [(PodUid(""), entry) for entry in strangers]
    return tuple(
        sorted(
            (
                Allocation(uid, *entry.key, held.container, held.resource, held.device_ids)
                for uid, entry in [*named, *unknown]
                for held in entry.held
            ),
            key=lambda a: (a.namespace, a.pod, a.pod_uid, a.container, a.resource),
        )
    )
