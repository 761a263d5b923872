"""What goes wrong in a closed loop: how long things take, and each fault by itself."""

from __future__ import annotations

from dataclasses import dataclass

HEARTBEAT = 60.0  # seconds after which an agent looks at its node without a cause
STALE_AFTER = 180.0  # seconds after which a record is stale that has not changed
SLACK = 15.0  # seconds that it may take until a fault is known
POLL = 2.0  # seconds, on average, until an agent sees of itself that its kubelet has changed


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds; each is the mean of an exponential distribution. 0 is at once.

    A share ``late_share`` of the reports takes ``late`` instead of ``look``; a share ``repeated``
    of them is followed by the one before it, as after a broken watch.
    """

    watch: float = 0.1
    bind: float = 0.05
    container: float = 0.03
    look: float = 0.3
    late: float = 5.0
    late_share: float = 0.03
    repeated: float = 0.02


@dataclass(frozen=True, slots=True)
class Faults:
    """What else goes wrong. Shares lie between 0 and 1, everything else is in seconds; 0 is never.

    Force deletion: a share ``forced`` of the bound pods is deleted from the API server at once,
    half of them within the first seconds. Their kubelets keep the devices for ``linger`` more
    (mean of an exponential distribution), and may even admit them after the deletion.

    Late commits: of the Bindings, a share ``late_commits`` gets no answer; most of them are written
    after all, at any moment until the request's own time limit and some seconds more (``limit``
    where it names none).
    A share ``lost_answers`` is written at once, and the answer is lost.

    Blind watches: about every ``blind_every`` a watch brings nothing for up to ``blind_for``. In a
    share ``both`` of these times it is those on pods and on records, otherwise one of them. In a
    share ``failing`` they fail (the extender is told so), otherwise they are just silent.

    Agents: with ``dies_every`` some agent dies about so often and stays dead for ``dead_for`` (both
    means). A share ``recreated`` of the reports comes in a record made anew, whose numbers start
    again. An extender that starts anew reads the records of dead agents like all others.

    Kubelets: about every ``kubelets_restart`` some kubelet ends, and starts ``down_for`` later.
    Then it takes ``bare_for`` until it has heard of its pods, and as long until the device plugin
    has registered, whichever is first (means). Until then it shows nobody, and refuses every pod.

    GPUs: about every ``gpus_sicken`` the device plugin calls one or two GPUs of a node sick; after
    ``sick_for`` they heal (means). In a share ``blamed`` of these times the agent calls them sick,
    too, and for longer.

    CPUs: a share ``whole_cpus`` of the pods is of the class Guaranteed, with whole CPUs. Where a
    node's CPU or Memory Manager is static, or nobody knows, it may hint at any NUMA nodes for such
    a pod, or refuse it.
    """

    forced: float = 0.0
    linger: float = 3.0
    late_commits: float = 0.0
    lost_answers: float = 0.0
    limit: float = 15.0
    blind_every: float = 0.0
    blind_for: float = 60.0
    both: float = 0.3
    failing: float = 0.5
    dies_every: float = 0.0
    dead_for: float = 400.0
    recreated: float = 0.0
    kubelets_restart: float = 0.0
    down_for: float = 1.0
    bare_for: float = 1.5
    gpus_sicken: float = 0.0
    sick_for: float = 15.0
    blamed: float = 0.5
    whole_cpus: float = 0.0


RARE_FAULTS = Faults(
    forced=0.05,
    late_commits=0.01,
    lost_answers=0.01,
    blind_every=600.0,
    dies_every=600.0,
    recreated=0.005,
    kubelets_restart=120.0,
    gpus_sicken=120.0,
    sick_for=60.0,
)
"""All of them, at rates that leave most of the time quiet."""
