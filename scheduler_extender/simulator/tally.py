"""What happened in a played cluster, counted."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """How often what happened. Promises are counted by verdict."""

    placed: int = 0
    foreign: int = 0  # pods that others bound, past kube-scheduler
    required: int = 0  # pods with constraints
    required_placed: int = 0
    placed_by_kind: Counter[str] = field(default_factory=Counter)
    asked_by_kind: Counter[str] = field(default_factory=Counter)
    promised: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    # Broken by a pod that others bound and that nobody had seen yet; and the same where the watch
    # had been failing for so long that the extender should have stopped promising.
    excused: Counter[str] = field(default_factory=Counter)
    unexcused: Counter[str] = field(default_factory=Counter)
    # Broken after a kubelet's restart, or a change of a GPU's health, which no report had shown the
    # extender when it decided.
    unreported: Counter[str] = field(default_factory=Counter)
    # By reason: pods that a kubelet refused, promised something or not, but for those events.
    kubelet_refusals: Counter[str] = field(default_factory=Counter)
    stale: int = 0  # pods with constraints placed on nodes whose agent was dead
    blind: int = 0  # the same while a watch had been failing for long
    happened: Counter[str] = field(default_factory=Counter)  # faults
    claimed: int = 0  # binds of pods whose claims had devices of a node with DRA
    vetoes: int = 0  # of these, refused over the devices
    gang_binds: int = 0  # of members of gangs
    gang_refusals: int = 0  # of these, refused
    group_members: int = 0
    split_groups: int = 0  # members that were bound outside the domain of their group
    whole_groups: int = 0  # groups of which all members lived at one time
    # Admissions after which the pods on a shared GPU use more memory than it has; and those beside
    # pods that others bound, or after an event that no report had shown.
    overcommitted: int = 0
    overcommitted_unseen: int = 0
    # By kind: what verification did not foresee, of pods that met no restart and no sick GPU.
    surprises: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)  # nodes about which deciding failed
    broken_jobs: list[str] = field(default_factory=list)
