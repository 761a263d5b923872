"""The pods that hold devices, and the pod that each entry of the kubelet's list belongs to.

The kubelet's PodResources API lists pods by name (:class:`Entry`). The API server knows them by UID
(:class:`NodePod`), and so does a report. The kubelet's list has two peculiarities. Ordinary init
containers never appear in it, though they hold devices until the pod ends. And containers get their
devices one after the other, so an entry can show half a pod.

A name alone does not identify the pod. A pod that is deleted by force leaves the API server at
once, and the kubelet only later. In between, its StatefulSet creates another pod of the same name.
So one name can stand for the *present* pod and for *former* pods::

    the API server's pod        the kubelet's list         what we knew before
    ────────────────────        ──────────────────         ───────────────────
                                ns/a  GPU 1      ◄──────── UID old  ns/a  GPU 1   (a former pod:
    UID new  ns/a    ────────►  ns/a  GPU 2                                        its UID is gone)

:func:`join` goes through the entries name by name:

1. **The first list.** No former pods are known yet, so an entry may belong to a pod that we have
   never seen. It belongs to the present pod only if the kubelet has acknowledged that pod (the
   kubelet sets ``status.startTime`` after admission). Otherwise the entry is unidentified.
2. **The number of former pods' entries.** At most all entries can be former pods'. If the present
   pod is acknowledged, at most all but one: the kubelet lists every active pod, so one entry is
   surely the present pod's.
3. **Same devices.** An entry that holds exactly what a former pod held belongs to that former pod.
4. **The rest**, in the order of the list. An entry belongs to the present pod if it is the only one
   left, or if no former pod can claim it. Otherwise it belongs to the next former pod. If no pod is
   left that could have it, it is *unidentified*: the holder of these devices is not known.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from topology.core.devices import DeviceId, PodUid
from topology.core.numa import NO_CPUS, CpuSet, MemoryBlock
from topology.core.report import Allocation

GPU_DRIVER = "gpu.nvidia.com"  # the DRA driver whose devices are GPUs

PodName = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class Held:
    """The devices of one resource that one container holds."""

    container: str
    resource: str  # under DRA, the driver's name
    device_ids: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One pod in the kubelet's list."""

    namespace: str
    name: str
    held: tuple[Held, ...] = ()  # the GPU devices of its containers
    # The CPUs and memory that static managers have given to its containers exclusively.
    cpus: CpuSet = NO_CPUS
    memory: tuple[MemoryBlock, ...] = ()

    @property
    def key(self) -> PodName:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod of the node as the API server shows it."""

    uid: PodUid
    namespace: str
    name: str
    # How many devices each app and sidecar container requests, by container and resource.
    wants: Mapping[tuple[str, str], int] = field(default_factory=dict)
    acknowledged: bool = False  # whether the kubelet has decided on its admission
    terminating: bool = False
    ended: bool = False  # whether it is Succeeded or Failed
    started: str = ""  # when the kubelet acknowledged it (RFC 3339, by the node's clock)
    refusal: str = ""  # the kubelet's message if it did not admit the pod
    refused: str = ""  # the reason in one word, if the kubelet refused it
    own_cpus: int = 0  # exclusive CPUs that a static CPU Manager gives it
    own_memory: int = 0  # containers to which a static Memory Manager gives exclusive memory

    @property
    def key(self) -> PodName:
        """Namespace and name."""
        return self.namespace, self.name


Holdings = Mapping[PodUid, Entry]  # what each pod holds, by its UID


def whole(pod: NodePod, entry: Entry | None, served: Collection[str] | None = None) -> bool:
    """Check whether every app and sidecar container of the pod has the devices that it requests.

    Only the resources in ``served`` count, which the kubelet hands out; None means all. The agent
    does not wait for other resources, such as another plugin's.
    """
    got: Counter[tuple[str, str]] = Counter()
    for held in entry.held if entry else ():
        got[held.container, held.resource] += len(held.device_ids)
    return all(
        got[key] >= count for key, count in pod.wants.items() if served is None or key[1] in served
    )


def awaited(
    joined: Holdings,
    pods: Mapping[PodUid, NodePod],
    shown: Callable[[NodePod, Entry | None], bool],
) -> frozenset[PodUid]:
    """Return the pods whose change the kubelet has yet to show.

    These are pods that it does not completely show yet, as ``shown`` tells, and pods that are
    terminating, ended or gone but still hold something.
    """
    coming = {uid for uid, pod in pods.items() if not pod.ended and not shown(pod, joined.get(uid))}
    leaving = {
        uid
        for uid, entry in joined.items()
        if (entry.held or entry.cpus or entry.memory)
        and (uid not in pods or pods[uid].ended or pods[uid].terminating)
    }
    return frozenset(coming | leaving)


def vanished(
    joined: Holdings, before: Holdings, pods: Mapping[PodUid, NodePod]
) -> frozenset[PodUid]:
    """Return the pods that held devices, hold none now, and are alive according to the API server.

    For a short time after its start a kubelet lists no pods and shows all devices as allocatable.
    """
    return frozenset(
        uid
        for uid, entry in before.items()
        if entry.held
        and not (uid in joined and joined[uid].held)
        and uid in pods
        and not pods[uid].ended
        and not pods[uid].terminating
    )


def device_ids(entries: Iterable[Entry]) -> set[DeviceId]:
    """Return the devices in these entries."""
    return {i for entry in entries for held in entry.held for i in held.device_ids}


def allocations(joined: Holdings, unidentified: Iterable[Entry] = ()) -> tuple[Allocation, ...]:
    """Return the report's allocations, in an order that depends only on them.

    An entry whose pod is not known has an empty UID.
    """
    named = [(uid, entry) for uid, entry in joined.items()]
    unknown = [(PodUid(""), entry) for entry in unidentified]
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


@dataclass(frozen=True, slots=True)
class Joined:
    """Entries by the UID of their pod, and the entries whose pod is not known."""

    by_uid: Mapping[PodUid, Entry]
    unidentified: tuple[Entry, ...] = ()


def join(
    entries: Sequence[Entry], pods: Mapping[PodUid, NodePod], before: Holdings | None
) -> Joined:
    """Find the pod of each entry.

    ``before`` is the former join, None for the first list. A pod keeps its UID until its entry is
    gone.
    """
    listed: defaultdict[PodName, list[Entry]] = defaultdict(list)
    for entry in entries:
        listed[entry.key].append(entry)
    present = {pod.key: pod for pod in pods.values()}
    former: defaultdict[PodName, dict[PodUid, Entry]] = defaultdict(dict)
    for uid, entry in (before or {}).items():
        if uid not in pods:
            former[entry.key][uid] = entry
    by_uid: dict[PodUid, Entry] = {}
    unidentified: list[Entry] = []
    for name, group in listed.items():
        pod = present.get(name)
        if before is None and pod is not None and not pod.acknowledged:  # step 1
            unidentified += group
            continue
        found = _of_one_name(group, pod, former[name])
        by_uid |= found.by_uid
        unidentified += found.unidentified
    return Joined(by_uid, tuple(entry for entry in unidentified if entry.held))


def _of_one_name(
    entries: Sequence[Entry], present: NodePod | None, former: Mapping[PodUid, Entry]
) -> Joined:
    """Assign the entries of one name to the present pod and the former pods (steps 2 to 4)."""
    by_uid: dict[PodUid, Entry] = {}
    unidentified: list[Entry] = []
    left, claimants = list(entries), list(former)
    formers = len(left) - (1 if present is not None and present.acknowledged else 0)
    for uid in former:
        same = next((entry for entry in left if entry.held == former[uid].held), None)
        if same is not None and formers > 0:
            by_uid[uid] = same
            left.remove(same)
            claimants.remove(uid)
            formers -= 1
    while left:
        can_be_former = bool(claimants) and formers > 0
        if present is not None and (len(left) == 1 or not can_be_former):
            by_uid[present.uid], present = left[0], None
        elif can_be_former:
            by_uid[claimants.pop(0)] = left[0]
            formers -= 1
        else:
            unidentified.append(left[0])
        del left[0]
    return Joined(by_uid, tuple(unidentified))
