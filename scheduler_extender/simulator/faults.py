"""How long things take in a played cluster, and each fault by itself."""

from dataclasses import dataclass

STALE_AFTER = 180.0  # seconds after which a record is stale that has not changed
SLACK = 15.0  # seconds that it may take until a fault is known
POLL = 2.0  # seconds, on average, until an agent sees of itself that its kubelet has changed


@dataclass(frozen=True, slots=True)
class Delays:
    """How long things take: means of exponential distributions, in seconds; 0 is at once."""

    watch: float = 0.1
    bind: float = 0.05
    container: float = 0.03
    grace: float = 1.0  # that a deleted pod takes to stop
    look: float = 0.3  # until an agent reports a change
    late: float = 5.0  # the same for a late report
    late_share: float = 0.03
    repeated: float = 0.02  # the share of reports followed by the one before, as by a broken watch
    forgets: float = 0.5  # the share of reports that show no pod which has ended


@dataclass(frozen=True, slots=True)
class Faults:
    """What else goes wrong. Shares lie between 0 and 1; all else is a mean in seconds, 0 is never.

    An extender that starts anew reads the records of dead agents like all others.
    """

    # The share of bound pods that somebody deletes at once, half of them within the first seconds.
    # Their kubelets keep the devices for ``linger`` more, and may even admit them after that.
    forced: float = 0.0
    linger: float = 3.0
    # The share of Bindings without an answer. Most are written after all, at any moment until the
    # request's own time limit and some seconds more (``limit`` where it names none).
    late_commits: float = 0.0
    lost_answers: float = 0.0  # the share that is written at once, and the answer is lost
    limit: float = 15.0
    # How often a watch brings nothing, and for how long at most. In a share ``both`` of these times
    # it is every watch, else one. In a share ``failing`` the extender is told so.
    stale_every: float = 0.0
    stale_for: float = 60.0
    both: float = 0.3
    failing: float = 0.5
    dies_every: float = 0.0  # how often some agent dies, and stays dead for ``dead_for``
    dead_for: float = 400.0
    recreated: float = 0.0  # the share of reports in a record made anew: numbers start again
    # How often some kubelet ends; it starts ``down_for`` later. Until it has heard of its pods, and
    # until its device plugin has registered (``bare_for`` each), it shows no pod and refuses all.
    kubelets_restart: float = 0.0
    down_for: float = 1.0
    bare_for: float = 1.5
    # How often the device plugin calls one or two GPUs of a node sick, and for how long. In a share
    # ``blamed`` of these times the agent calls them sick, too, and for longer.
    gpus_sicken: float = 0.0
    sick_for: float = 15.0
    blamed: float = 0.5
    # The share of pods of the class Guaranteed with whole CPUs. A static manager, or one of which
    # nobody knows, may hint at any NUMA nodes for such a pod, or refuse it.
    whole_cpus: float = 0.0


# Nothing takes any time.
AT_ONCE = Delays(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, forgets=1.0)

# All of them, at rates that leave most of the time quiet.
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
