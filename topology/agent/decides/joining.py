"""Whose is an entry of the kubelet's list? Entries have names, pods have UIDs.

The kubelet's PodResources API names a pod by namespace and name. A report names it by UID. A name
alone is not enough. A pod that is deleted by force leaves the API server at once, and the kubelet
only later. Meanwhile its StatefulSet makes another pod of the same name. So one name can stand for
the *present* pod and for *former* pods::

    the API server's pod        the kubelet's list         what we knew before
    ────────────────────        ──────────────────         ───────────────────
                                ns/a  GPU 1      ◄──────── UID old  ns/a  GPU 1   (a former pod:
    UID new  ns/a    ────────►  ns/a  GPU 2                                        its UID is gone)

:func:`join` goes through the entries name by name:

1. **The first list.** We know no former pods yet, so an entry may be of one that we never heard of.
   It belongs to the present pod only if the kubelet has acknowledged that pod (the kubelet sets
   ``status.startTime`` after admission). Else nobody can tell.
2. **How many entries can be former pods'.** All of them; or all but one, where the present pod is
   acknowledged: the kubelet lists every active pod, so one entry is surely its.
3. **Same devices.** An entry that holds exactly what a former pod held is that former pod's.
4. **The rest**, in the order of the list. An entry is the present pod's where it is the only one
   left, or where no former pod can claim it. Else it is the next former pod's. Where no pod is
   left that could have it, it is *unidentified*: nobody can tell whose devices these are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topology.agent.decides.holdings import Entry, Holdings, NodePod, PodName
from topology.core.devices import PodUid


@dataclass(frozen=True, slots=True)
class Joined:
    """Entries by the UID of their pod, and entries with devices of which nobody can tell whose."""

    by_uid: Mapping[PodUid, Entry]
    unidentified: tuple[Entry, ...] = ()


def join(
    entries: Sequence[Entry], pods: Mapping[PodUid, NodePod], before: Holdings | None
) -> Joined:
    """Find the pod of each entry.

    ``before`` is the former join: a pod that was listed under a UID is known by it until it goes.
    None says that this is the first list.
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
    """Steps 2 to 4: the entries of one name among the present pod and the former ones."""
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
