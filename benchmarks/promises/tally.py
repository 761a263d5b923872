"""What happened in a closed loop, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """How often what happened.

    ``excused`` promises were broken by a pod that others bound and that nobody had seen yet.
    ``unexcused`` ones were broken by such a pod, too, but the watch had been failing for so long
    that the extender should have stopped promising. ``faults`` are nodes about which deciding
    failed.
    ``unreported`` ones were broken after a kubelet's restart or a change of a GPU's health which no
    report had shown the extender when it decided; ``unreported_refusals`` are pods that a kubelet
    refused then, promised something or not. ``kubelet_restarts`` and ``sickened`` count these
    events; ``surprises`` are those of pods that met none.
    ``overcommitted`` counts admissions after which the pods on a shared GPU use more memory than it
    has; with pods that others bound, or after such an event, they are ``overcommitted_unseen``.
    ``stale`` counts required pods placed on nodes whose agent was dead, ``blind`` those placed
    while a watch had been failing for long.
    ``gang_binds`` are binds of gangs' members, ``gang_refusals`` those that were refused: for a
    reason that was ``known`` at the gang's filter calls, because something had ``changed since``,
    or because kube-scheduler had ``miscounted`` the node's free devices. ``split_groups`` counts
    members that were bound outside the domain of their group, ``whole_groups`` groups of which all
    members lived at one time.
    """

    placed: int = 0
    foreign: int = 0
    required: int = 0
    required_placed: int = 0
    refused_by_bind: int = 0
    gave_up: int = 0
    promised: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    kubelet_refusals: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    placed_by_kind: Counter[str] = field(default_factory=Counter)
    asked_by_kind: Counter[str] = field(default_factory=Counter)
    unexcused: Counter[str] = field(default_factory=Counter)
    unreported: Counter[str] = field(default_factory=Counter)
    unreported_refusals: Counter[str] = field(default_factory=Counter)
    kubelet_restarts: int = 0
    sickened: int = 0
    stale: int = 0
    blind: int = 0
    restarts: int = 0
    forced: int = 0
    late_commits: int = 0
    blindings: int = 0
    deaths: int = 0
    recreated: int = 0
    gang_binds: int = 0
    gang_refusals: Counter[str] = field(default_factory=Counter)
    group_members: int = 0
    split_groups: int = 0
    whole_groups: int = 0
    faults: list[str] = field(default_factory=list)
    surprises: Counter[str] = field(default_factory=Counter)
    overcommitted: int = 0
    overcommitted_unseen: int = 0
    broken_jobs: list[str] = field(default_factory=list)
