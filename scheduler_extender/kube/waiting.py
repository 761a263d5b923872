"""Write an Event on each waiting pod with a short text that says why it waits.

kube-scheduler's own Event names every node's reason and changes with each of them. This one counts
nodes by reason. It is written when a pod is first seen to wait and when the reasons change. If only
the counts change, it is rarely written again. A round does a bounded amount of work however many
pods wait.
"""

from collections.abc import Callable
from dataclasses import dataclass

from scheduler_extender.deadline import within
from scheduler_extender.explain.waitingreasons import rejection_counts
from scheduler_extender.explain.wording import REASON_WORDS
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import PodUid

EVERY = 5.0  # seconds between two rounds that evaluate any pod
AGAIN = 60.0  # seconds after which a pod is evaluated again, whether an Event was written or not
RARELY = 900.0  # seconds after which a text of which only the counts have changed is written again
AT_ONCE = 20  # pods evaluated in one round; those whose evaluation is longest ago come first
# Seconds for which the nodes' answers to one pod may be worked out. Most answers are cached, since
# kube-scheduler has just requested them.
SECONDS = 0.1
MORE = "kubectl gpu-topology why gives details"


@dataclass(frozen=True, slots=True)
class _Told:
    """When a pod was evaluated, the last text of its Event, and when that was written.

    Of its reasons only the hash is kept, since every node may have a taint of its own.
    """

    looked: float
    text: str = ""
    reasons: int = hash(frozenset[str]())
    at: float = float("-inf")


class WaitingPods:
    """The writer of these Events, as the module describes it.

    One thread calls :meth:`round`; ``tell`` never blocks.
    """

    def __init__(self, cluster: Cache, tell: Callable[[PodRecord, str], None]) -> None:
        self._cluster = cluster
        self._tell = tell
        self._told: dict[PodUid, _Told] = {}
        self._next = float("-inf")

    def round(self, now: float) -> None:
        """Evaluate the pods that are due. ``now`` is in seconds."""
        if now < self._next:
            return
        self._next = now + EVERY
        waiting = {pod.uid: pod for pod in self._cluster.snapshot().unschedulable}
        self._told = {uid: told for uid, told in self._told.items() if uid in waiting}
        due = [uid for uid in waiting if self._looked(uid) <= now - AGAIN]
        for uid in sorted(due, key=self._looked)[:AT_ONCE]:
            self._look(waiting[uid], now)

    def _looked(self, uid: PodUid) -> float:
        return self._told.get(uid, _Told(float("-inf"))).looked

    def _look(self, pod: PodRecord, now: float) -> None:
        before = self._told.get(pod.uid, _Told(now))
        counts = rejection_counts(
            self._cluster.snapshot(), pod, within(self._cluster.clock, SECONDS)
        )
        words = (REASON_WORDS[why.reason] for why in counts.rejected)
        reasons = hash(frozenset((*words, *counts.bars)))
        text = f"{counts.headline} ({MORE})" if counts.rejected else ""
        news = reasons != before.reasons or (text != before.text and now - before.at >= RARELY)
        if text and news:
            self._tell(pod, text)
            self._told[pod.uid] = _Told(now, text, reasons, now)
        else:
            self._told[pod.uid] = _Told(now, before.text, before.reasons, before.at)
