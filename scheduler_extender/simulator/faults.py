"""The delays of a simulated cluster, and its faults, each one separately."""

from dataclasses import dataclass

STALE_AFTER = 180.0  # seconds after which an unchanged record is stale
SLACK = 15.0  # seconds that may pass until a fault is known
POLL = 2.0  # seconds, on average, until an agent notices a change of its kubelet


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays: means of exponential distributions, in seconds. 0 means at once."""

    watch: float = 0.1
    bind: float = 0.05
    container: float = 0.03
    grace: float = 1.0  # until a deleted pod has stopped
    look: float = 0.3  # until an agent reports a change
    late: float = 5.0  # the same for a late report
    late_fraction: float = 0.03
    repeated: float = (
        0.02  # the fraction of reports followed by the one before, as by a broken watch
    )
    forgets: float = 0.5  # the fraction of reports that show no ended pod


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults.

    Shares are between 0 and 1; all other values are means in seconds, and 0 means never.

    An extender that starts anew reads the records of dead agents like all others.
    """

    # The fraction of bound pods that are deleted by force, half of them within the first seconds.
    # Their kubelets keep the devices for ``linger`` more, and may even admit them after that.
    forced: float = 0.0
    linger: float = 3.0
    # The fraction of Bindings without an answer. Most are written after all, at any time until the
    # request's own time limit and some seconds more (``limit`` if it has none).
    late_commits: float = 0.0
    lost_answers: float = 0.0  # the fraction of Bindings written at once without an answer
    limit: float = 15.0
    # How often a watch delivers nothing, and for how long at most. In a fraction ``both`` of the
    # cases it is every watch, else one. In a fraction ``failing`` the extender knows it.
    stale_every: float = 0.0
    stale_for: float = 60.0
    both: float = 0.3
    failing: float = 0.5
    dies_every: float = 0.0  # how often an agent dies; it stays dead for ``dead_for``
    dead_for: float = 400.0
    recreated: float = 0.0  # the fraction of reports in a new record: sequence numbers start again
    # How often a kubelet ends; it starts ``down_for`` later. It then shows no pod and refuses all
    # pods until it has heard of its pods, and until its device plugin has registered. Each takes
    # ``bare_for``.
    kubelets_restart: float = 0.0
    down_for: float = 1.0
    bare_for: float = 1.5
    # How often the device plugin reports one or two GPUs of a node as sick, and for how long. In a
    # fraction ``blamed`` of the cases the agent reports them, too, and for longer.
    gpus_sicken: float = 0.0
    sick_for: float = 15.0
    blamed: float = 0.5
    # The fraction of pods of the class Guaranteed with whole CPUs. For such a pod a static manager,
    # or an unknown one, may hint at any NUMA nodes, or refuse the pod.
    whole_cpus: float = 0.0


# All delays are 0.
AT_ONCE = Delays(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, forgets=1.0)

# All faults, at rates that leave most of the time quiet.
RARE_FAULTS = Faults(
    forced=0.05,
    late_commits=0.01,
    lost_answers=0.01,
    stale_every=600.0,
    dies_every=600.0,
    recreated=0.005,
    kubelets_restart=120.0,
    gpus_sicken=120.0,
    sick_for=60.0,
)
