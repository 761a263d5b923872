"""The cheapest plan, found by trying everything: every set of pods of every node, every home.

It shares with the search what a guaranteed place is (:func:`decide`) and how a pod is placed in a
rehearsal; not how sets are chosen, ordered or left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

from scheduler_extender.framework.decision import decide
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.budgets import Budgets, refused
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.unblocking.homes import placed
from scheduler_extender.unblocking.plan import Cost
from topology.core.placement import Verdict
from topology.core.requests import GpuRequest


def cheapest(
    nodes: Sequence[NodeFacts], pod: PodRecord, budgets: Budgets, settings: Settings
) -> Cost | None:
    """The least cost of all plans; None where there is none."""
    settings = replace(settings, require=Verdict.GUARANTEED)
    found = []
    for facts in nodes:
        tied = ("Node", "DaemonSet")
        alive = facts.pods.bound.alive.values()
        pods = [p for p in alive if not p.deleting and p.standing.controller not in tied]
        ending = {p.uid for p in facts.pods.bound.alive.values() if p.deleting}
        for size in range(len(pods) + 1):
            for victims in combinations(pods, size):
                gone = frozenset(ending | {p.uid for p in victims})
                cost = _cost(nodes, facts.without(gone), pod, victims, budgets, settings)
                if cost is not None:
                    found.append(cost)
    return min(found, default=None)


def _cost(
    nodes: Sequence[NodeFacts],
    without: NodeFacts,
    pod: PodRecord,
    victims: Sequence[PodRecord],
    budgets: Budgets,
    settings: Settings,
) -> Cost | None:
    if not _has_place(without, pod.request, settings) or refused(victims, budgets) is not None:
        return None
    if not _has_cpus(without, pod):
        return None
    ours = pod.standing.priority
    # The most important pod is placed first, as in the rehearsal.
    order = sorted(victims, key=lambda p: (-p.standing.priority, p.started or 0.0, p.uid))
    least = None
    for homes in product((None, *(facts.name for facts in nodes)), repeat=len(order)):
        world = {facts.name: facts for facts in nodes} | {without.name: placed(without, pod)}
        lost = 0
        for victim, home in zip(order, homes, strict=True):
            priority = victim.standing.priority
            if home is None:
                lost += 1
                if priority >= ours:
                    break
                continue
            bare = victim.standing.controller == ""
            if bare or priority > ours or not _has_place(world[home], victim.request, settings):
                break
            if not _has_cpus(world[home], victim):
                break
            world[home] = placed(world[home], victim)
        else:
            priorities = sum(victim.standing.priority for victim in order)
            devices = sum(
                victim.request.count for victim in order if isinstance(victim.request, GpuRequest)
            )
            cost = Cost(lost, len(order) - lost, priorities, devices)
            least = cost if least is None else min(least, cost)
    return least


def _has_cpus(facts: NodeFacts, pod: PodRecord) -> bool:
    """Here nothing but CPUs is short, and nobody but the pods with GPUs uses them."""
    if facts.node_object.allocatable is None:
        return True
    here = [*facts.pods.bound.alive.values(), *facts.pods.in_flight.values(), pod]
    used = sum(dict(each.standing.asks).get("cpu", 0) for each in here)
    return used <= dict(facts.node_object.allocatable)["cpu"]


def _has_place(facts: NodeFacts, request: object, settings: Settings) -> bool:
    assert isinstance(request, GpuRequest)
    found = decide(facts, request, settings)
    if found.rejection is not None or found.assessment is None:
        return False
    return found.assessment.verdict is Verdict.GUARANTEED
