"""What ``/v1/unblock`` answers: whom to evict so that a waiting pod gets a guaranteed place."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from scheduler_extender.deadline import OutOfTimeError, within
from scheduler_extender.limits import UNBLOCK_SECONDS
from scheduler_extender.state.answers.decision import Place, place_of
from scheduler_extender.state.asking.members import Member, as_member
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.unblocking import search
from scheduler_extender.unblocking.homes import Places
from scheduler_extender.unblocking.victims import after, importance
from scheduler_extender.verbs.afterwards import Afterwards
from topology.core.placement import Verdict
from topology.core.requests import GpuRequest

NO_BUDGETS = "the PodDisruptionBudgets are not known (yet): nothing is planned without them"
COUNTING = "the places of the pod's group are still being counted: ask again"
BLIND = "the extender's view of the cluster is out of date"


def unblocking_of(cluster: Cluster, namespace: str, name: str) -> dict[str, Any] | None:
    """The answer; None where the pod is unknown."""
    with cluster.locked():  # the pod and the nodes at one moment
        pod, seen = cluster.pod_named(namespace, name), cluster.cluster_facts()
        budgets = cluster.budgets
    if pod is None:
        return None
    found: dict[str, Any] = {"pod": f"{namespace}/{name}", "uid": pod.uid, "node": pod.node}
    found |= {"takes": None, "plan": None, "whole": True, "reserved": None}
    if pod.node is not None:
        return {**found, "text": [f"{namespace}/{name} is on {pod.node}"]}
    unscheduled = _why_not_scheduled(pod)
    if unscheduled:
        why = f"nobody is worth evicting for {namespace}/{name}: {unscheduled}"
        return {**found, "text": [why]}
    if seen.blind:
        return {**found, "text": [BLIND]}
    deadline = within(cluster.clock, UNBLOCK_SECONDS)
    member = _member(cluster, pod)
    afterwards = Afterwards(cluster, member, deadline, lambda facts: facts.is_open_to(pod))
    try:
        kept = _kept(cluster, pod, member, afterwards)
    except OutOfTimeError:
        return {**found, "text": [COUNTING]}
    if kept is not None:
        uncertain = "uncertain now" if not kept["lost"] else "not there any more"
        state = "there" if kept["holds"] else uncertain
        text = [f"a place on {kept['node']} is kept until {kept['until']}; it is {state}"]
        if kept["left"]:
            left = ", ".join(f"{step['namespace']}/{step['pod']}" for step in kept["left"])
            text.append(f"still to be evicted for it: {left}")
        return {**found, "reserved": kept, "text": text}
    if budgets is None:
        return {**found, "text": [NO_BUDGETS]}
    advice = search(
        seen.nodes,
        pod,
        budgets,
        cluster.settings,
        deadline,
        request=None if member is None else member.request,
        group=afterwards.on,
        others=cluster.others,
    )
    if advice.plan is not None:
        facts = next(found for found in seen.nodes if found.name == advice.plan.node)
        without = after(facts, (step.pod for step in advice.plan.steps), pod.uid)
        advice = replace(advice, plan=replace(advice.plan, beside=afterwards.beside(without)))
    plan = advice.plan.as_json() if advice.plan is not None else None
    return {
        **found,
        "takes": advice.takes,
        "plan": plan,
        "whole": advice.whole,
        "text": advice.lines(pod),
    }


def _why_not_scheduled(pod: PodRecord) -> str:
    """Why kube-scheduler does not look at a pod, so that no eviction helps it; empty where it
    does."""
    if pod.ended:
        return "it has ended"
    if pod.deleting:
        return "it is being deleted"
    if pod.gated:
        return "it has scheduling gates; until they are gone kube-scheduler does not look at it"
    return ""


def _member(cluster: Cluster, pod: PodRecord) -> Member | None:
    """The pod as a member of its group; None where it is in none."""
    if pod.membership is None or not isinstance(pod.request, GpuRequest):
        return None
    return as_member(cluster, pod.uid, pod.membership, pod.request)


def _kept(
    cluster: Cluster, pod: PodRecord, member: Member | None, afterwards: Afterwards
) -> dict[str, Any] | None:
    """The place that is kept for a pod, and whether it is there once its victims have let go: for
    a ``member`` one where its group lets it go. Raises :class:`.OutOfTimeError`."""
    kept = pod.kept_place
    if kept is None or not isinstance(pod.request, GpuRequest):
        return None
    node = kept.node
    if node not in cluster.places_of(pod.uid):
        return None
    facts = cluster.facts(node)
    without = facts.without(kept.victims | facts.ending | {pod.uid})
    settings = replace(cluster.settings, require=Verdict.GUARANTEED)
    request = pod.request if member is None else member.request
    holds = Places((), settings).guaranteed(without, request)
    lost = not holds and (facts.kept is None or place_of(facts.kept, pod) is Place.LOST)
    if holds:
        holds = afterwards.on(without, kept.victims).rejection is None
        lost = not holds
    victims = [facts.alive[uid] for uid in kept.victims if uid in facts.alive]
    left = sorted((each for each in victims if not each.deleting), key=importance)
    return {
        "node": node,
        "until": datetime.fromtimestamp(kept.until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "victims": sorted(kept.victims),
        "left": [_eviction(each) for each in left],
        "holds": holds,
        "lost": lost,
        "settled": cluster.places_settled(),
    }


def _eviction(pod: PodRecord) -> dict[str, Any]:
    """A pod that is still to be evicted."""
    return {
        "namespace": pod.namespace,
        "pod": pod.name,
        "uid": pod.uid,
        "priority": pod.standing.priority,
        "controller": pod.standing.controller,
    }
