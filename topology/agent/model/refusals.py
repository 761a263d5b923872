"""The pods with GPUs that the node's kubelet has refused, of which the record has the latest.

A refused pod stays at the API server until it is deleted, and its controller creates others in the
meantime. So the record keeps the refusals, over restarts and boots.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from topology.agent.model.podentries import NodePod
from topology.agent.model.recordlimits import LARGEST_AMOUNT, LONGEST_REASON, MOST_REFUSED
from topology.core.devices import PodUid
from topology.core.refusal import Refusal
from topology.core.report import RefusedPod


class RefusalTracker:
    """The refusals of one node. ``counts`` has all since the agent's start, by reason."""

    def __init__(self) -> None:
        self.latest: tuple[RefusedPod, ...] = ()
        self.counts: Counter[str] = Counter()
        self._counted: frozenset[PodUid] = frozenset()
        self._since = ("", "")  # the time and UID up to which the former agent has counted all

    def remember(self, history: Iterable[RefusedPod]) -> None:
        """Take over the refusals that the former agent has published."""
        self.latest = tuple(history)
        self._counted = frozenset(refused.pod_uid for refused in self.latest)
        if len(self.latest) >= MOST_REFUSED:  # it has dropped older ones, which may still be there
            self._since = (self.latest[0].at, self.latest[0].pod_uid)

    def look(self, pods: Mapping[PodUid, NodePod]) -> None:
        """Add the refused pods that are new. They are as the API server shows them."""
        there = {uid: pod for uid, pod in pods.items() if pod.refused and pod.wants and pod.started}
        new = [
            _refused(pod)
            for uid, pod in there.items()
            if uid not in self._counted and (pod.started, uid) > self._since
        ]
        self.counts.update(Refusal(each.reason).label for each in new)
        newest_last = sorted([*self.latest, *new], key=lambda each: (each.at, each.pod_uid))
        self.latest = tuple(newest_last[-MOST_REFUSED:])
        self._counted = frozenset({*there, *(each.pod_uid for each in self.latest)})


def _refused(pod: NodePod) -> RefusedPod:
    asked: Counter[str] = Counter()
    for (_, resource), devices in pod.wants.items():
        asked[resource] += devices
    ((resource, devices),) = asked.most_common(1)
    # Containers may request 2**63 - 1 devices each. The API server would refuse the whole record.
    devices, reason = min(devices, LARGEST_AMOUNT), pod.refused[:LONGEST_REASON]
    return RefusedPod(pod.uid, pod.namespace, pod.name, resource, devices, reason, pod.started)
