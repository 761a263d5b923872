"""The cheapest plan, found by trying everything: every set of pods of every node, every home.

It shares with the search what a guaranteed place is (:func:`decide`) and how a pod is placed in a
rehearsal; not how sets are chosen, ordered or left out.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

from scheduler_extender.evictions.plan import Cost
from scheduler_extender.evictions.relocation import placed
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.budgets import Budgets, refused
from scheduler_extender.state.pods.record import PodRecord
from topology.core.placement import Verdict
from topology.core.requests import GpuRequest


def cheapest(
    nodes: Sequence[NodeInfo], pod: PodRecord, budgets: Budgets, settings: Settings
) -> Cost | None:
    """The least cost of all plans; None where there is none."""
    settings = replace(settings, require=Verdict.GUARANTEED)
    found = []
    for info in nodes:
        tied = ("Node", "DaemonSet")
        alive = info.pods.bound.alive.values()
        pods = [p for p in alive if not p.terminating and p.attributes.controller not in tied]
        terminating = {p.uid for p in info.pods.bound.alive.values() if p.terminating}
        for size in range(len(pods) + 1):
            for victims in combinations(pods, size):
                gone = frozenset(terminating | {p.uid for p in victims})
                cost = _cost(nodes, info.without(gone), pod, victims, budgets, settings)
                if cost is not None:
                    found.append(cost)
    return min(found, default=None)


def _cost(
    nodes: Sequence[NodeInfo],
    without: NodeInfo,
    pod: PodRecord,
    victims: Sequence[PodRecord],
    budgets: Budgets,
    settings: Settings,
) -> Cost | None:
    if not _has_place(without, pod.request, settings) or refused(victims, budgets) is not None:
        return None
    if not _has_cpus(without, pod):
        return None
    ours = pod.attributes.priority
    # The most important pod is placed first, as in the rehearsal.
    order = sorted(victims, key=lambda p: (-p.attributes.priority, p.started or 0.0, p.uid))
    least = None
    for relocations in product((None, *(info.name for info in nodes)), repeat=len(order)):
        world = {info.name: info for info in nodes} | {without.name: placed(without, pod)}
        lost = 0
        for victim, relocation in zip(order, relocations, strict=True):
            priority = victim.attributes.priority
            if relocation is None:
                lost += 1
                if priority >= ours:
                    break
                continue
            bare = victim.attributes.controller == ""
            if (
                bare
                or priority > ours
                or not _has_place(world[relocation], victim.request, settings)
            ):
                break
            if not _has_cpus(world[relocation], victim):
                break
            world[relocation] = placed(world[relocation], victim)
        else:
            priorities = sum(victim.attributes.priority for victim in order)
            devices = sum(
                victim.request.count for victim in order if isinstance(victim.request, GpuRequest)
            )
            cost = Cost(lost, len(order) - lost, priorities, devices)
            least = cost if least is None else min(least, cost)
    return least


def _has_cpus(info: NodeInfo, pod: PodRecord) -> bool:
    """Only CPUs are short here, and only pods with GPUs use them."""
    if info.node_object.allocatable is None:
        return True
    here = [*info.pods.bound.alive.values(), *info.pods.assumed.values(), pod]
    used = sum(dict(each.attributes.requests).get("cpu", 0) for each in here)
    return used <= dict(info.node_object.allocatable)["cpu"]


def _has_place(info: NodeInfo, request: object, settings: Settings) -> bool:
    assert isinstance(request, GpuRequest)
    found = decide(info, request, settings)
    if found.rejection is not None or found.assessment is None:
        return False
    return found.assessment.verdict is Verdict.GUARANTEED
