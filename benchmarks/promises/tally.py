"""What happened in a closed loop, counted."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """How often what happened. Promises are counted by verdict."""

    placed: int = 0
    foreign: int = 0  # pods that others bound, past kube-scheduler
    required: int = 0  # pods with constraints
    required_placed: int = 0
    refused_by_bind: int = 0
    claimed: int = 0  # binds of pods whose claims had devices of a node with DRA
    vetoes: int = 0  # of these, refused over the devices
    claimless: int = 0  # pods that were bound to such a node and had lost their claim
    moves: int = 0  # of nodes to DRA, and back
    gave_up: int = 0
    promised: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    # Broken by a pod that others bound and that nobody had seen yet.
    excused: Counter[str] = field(default_factory=Counter)
    # By reason: pods that a kubelet refused, promised something or not.
    kubelet_refusals: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # why the extender let pods wait
    placed_by_kind: Counter[str] = field(default_factory=Counter)
    asked_by_kind: Counter[str] = field(default_factory=Counter)
    # Broken by a pod that others bound, too, but the watch had been failing for so long that the
    # extender should have stopped promising.
    unexcused: Counter[str] = field(default_factory=Counter)
    # Broken after a kubelet's restart, or a change of a GPU's health, which no report had shown the
    # extender when it decided.
    unreported: Counter[str] = field(default_factory=Counter)
    unreported_refusals: Counter[str] = field(default_factory=Counter)  # refused by a kubelet then
    kubelet_restarts: int = 0
    sickened: int = 0  # GPUs that fell sick
    stale: int = 0  # pods with constraints placed on nodes whose agent was dead
    blind: int = 0  # the same while a watch had been failing for long
    restarts: int = 0  # of the extender
    forced: int = 0
    late_commits: int = 0
    blindings: int = 0
    deaths: int = 0  # of agents
    recreated: int = 0  # records that somebody deleted
    gang_binds: int = 0  # of members of gangs
    # Of these, refused: for a reason that was ``known`` at the gang's filter calls, because
    # something had ``changed since``, or because kube-scheduler had ``miscounted`` free devices.
    gang_refusals: Counter[str] = field(default_factory=Counter)
    group_members: int = 0
    split_groups: int = 0  # members that were bound outside the domain of their group
    whole_groups: int = 0  # groups of which all members lived at one time
    faults: list[str] = field(default_factory=list)  # nodes about which deciding failed
    # By kind: what verification did not foresee, of pods that met no restart and no sick GPU.
    surprises: Counter[str] = field(default_factory=Counter)
    # Admissions after which the pods on a shared GPU use more memory than it has; and those beside
    # pods that others bound, or after an event that no report had shown.
    overcommitted: int = 0
    overcommitted_unseen: int = 0
    broken_jobs: list[str] = field(default_factory=list)
