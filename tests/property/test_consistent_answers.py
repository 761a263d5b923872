"""All answers about a pod agree: which nodes take it, in which order, and why not.

The verbs place the pod; ``check``, ``why``, ``waiting``, ``unblock``, the pages and the pod's Event
say where it may go. Random small clusters hold pods, sick GPUs, reservations, labels, taints and
cordons; random pods wait there, some in groups.
"""

import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.explain.answers import Answer, answers_to, counts_of
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.explain.explanation import Explanation, explanation_of
from scheduler_extender.explain.groupfit import judge
from scheduler_extender.explain.waitingreasons import rejection_counts
from scheduler_extender.explain.wording import REASON_WORDS
from scheduler_extender.files.podfile import read_all
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs.filtering import filtered
from scheduler_extender.verbs.prioritizing import prioritize
from scheduler_extender.web.pages import Pages
from scheduler_extender.wire import Pod, Taint
from tests.nodes import bridged, pcie, pod, record_of, switched
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import Allocation, Health, Report
from topology.core.requests import GpuRequest

SEEDS = range(80)
TAINT = Taint("team", "a", "NoSchedule")
ASKS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"link": "nvlink"},
    {"link": "nvlink", "policy": "preferred"},
    {"min-gpu-memory": "30Gi"},
)
GROUPS: tuple[dict[str, str], ...] = (
    {},
    {},
    {},
    {"group": "g", "group-size": "2", "group-domain": "node"},
    {"group": "z", "group-size": "2", "group-domain": "pool"},
    {"group": "n", "group-size": "2", "group-domain": "rack"},
)


@dataclass(frozen=True)
class World:
    """A cluster, and the pods that wait there."""

    cluster: Cache
    waiting: dict[str, dict[str, Any]]  # by name, as kube-scheduler sends them


def world(rng: random.Random) -> World:
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    cluster.budgets = ()
    names = [f"n{number}" for number in range(rng.randint(1, 5))]
    for name in names:
        _node(rng, cluster, name)
    waiting = {}
    for number in range(4):
        manifest = _waits(rng, f"w{number}", names)
        waiting[f"w{number}"] = manifest
        cluster.put_pod(record_of(manifest))
    return World(cluster, waiting)


def _node(rng: random.Random, cluster: Cache, name: str) -> None:
    node = rng.choice((switched, bridged, pcie))(rng.choice((2, 4)), name)
    if rng.random() < 0.1:
        cluster.put_record(node, None)  # its agent has not reported
        return
    free = list(range(len(node.gpus)))
    rng.shuffle(free)
    held: list[Allocation] = []
    while free and rng.random() < 0.5:
        mine = [free.pop() for _ in range(min(len(free), rng.choice((1, 1, 2))))]
        who = f"{name}-{len(held)}"
        cluster.put_pod(record_of(pod(len(mine), name=who, uid=who, node=name, phase="Running")))
        ids = tuple(DeviceId(node.gpus[p].uuid) for p in mine)
        held.append(Allocation(PodUid(who), "default", who, "main", "nvidia.com/gpu", ids))
    sick = [gpu for gpu in node.gpus if rng.random() < 0.1]
    health = tuple(Health(gpu.uuid, healthy=False, reason="Xid94") for gpu in sick)
    cluster.put_record(node, Report("boot", 1, allocations=tuple(held), health=health))
    cluster.put_node(
        NodeName(name),
        NodeObject(
            labels={"pool": rng.choice("ab")},
            cordoned=rng.random() < 0.1,
            taints=(TAINT,) if rng.random() < 0.2 else (),
        ),
    )


def _waits(rng: random.Random, name: str, nodes: list[str]) -> dict[str, Any]:
    asks = rng.choice(ASKS) | rng.choice(GROUPS)
    found = pod(rng.choice((1, 1, 2, 4)), asks, name=name, uid=name)
    found["spec"]["priority"] = rng.choice((0, 0, 10))
    if rng.random() < 0.3:
        found["spec"]["nodeSelector"] = {"pool": rng.choice("ab")}
    if rng.random() < 0.3:
        found["spec"]["tolerations"] = [{"operator": "Exists"}]
    if rng.random() < 0.2:  # by preemption: the place is reserved for it
        found["status"]["nominatedNodeName"] = rng.choice(nodes)
    return found


def asked(found: World, name: str) -> tuple[list[Answer], Explanation]:
    """The nodes' answers, and what ``why`` says."""
    snapshot = found.cluster.snapshot()
    record = record_of(found.waiting[name])
    answer = explanation_of(snapshot, record)
    assert isinstance(answer, Explanation)
    return answers_to(snapshot, record), answer


@pytest.mark.parametrize("seed", SEEDS)
def test_all_agree_which_nodes_take_a_pod_in_which_order_and_why_not(seed: int) -> None:
    found = world(random.Random(seed))
    for name, manifest in found.waiting.items():
        record, wire = record_of(manifest), msgspec.convert(manifest, Pod)
        rows, why = asked(found, name)
        snapshot = found.cluster.snapshot()
        offered = [f.name for f in snapshot.nodes if not f.bar(record.attributes.eligible_nodes)]
        verb = filtered(snapshot, wire, offered)
        refused = {node: each for each, nodes in verb.rejected.items() for node in nodes}
        # Who takes it, and why the others do not.
        assert {row.node for row in rows if row.may_come} == set(verb.passed), name
        answer = {row.node: row.decision.rejection for row in rows if not row.ineligible}
        assert {node: each for node, each in answer.items() if each is not None} == refused, name
        # The order, best first.
        scores = {each.host: each.score for each in prioritize(found.cluster, wire, verb.passed)}
        assert {row.node: row.score for row in rows if row.may_come} == scores, name
        assert {row.node: row.score for row in why.nodes if row.may_come} == scores, name
        _counts_agree(found, record, rows, why)
        _people_agree(found, name, rows)


def _counts_agree(found: World, record: PodRecord, rows: list[Answer], why: Explanation) -> None:
    """The line of ``why`` and ``waiting``, the pod's Event and the metric."""
    counts = counts_of(rows)
    assert counts.headline == why.headline
    texts = defaultdict[str, set[str]](set)  # as the kinds of reasons are told
    for row in rows:
        if row.decision.rejection is not None:
            texts[REASON_WORDS[row.decision.rejection.reason]].add(row.message)
    for words, reasons in texts.items():
        assert (f" nodes {words}" in why.headline) == (len(reasons) > 1)
        assert all((f"{message} (" in why.headline) == (len(reasons) == 1) for message in reasons)
    event = rejection_counts(found.cluster.snapshot(), record, NO_DEADLINE)
    if counts.takes == counts.ineligible:
        assert event.headline == why.headline
    else:
        assert not event.rejected


def _people_agree(found: World, name: str, rows: list[Answer]) -> None:
    """``check``, *what if* and ``unblock``."""
    manifest = found.waiting[name]
    request = record_of(manifest).request
    assert isinstance(request, GpuRequest)
    content = not request.plain and not request.required  # with whatever GPUs
    sure = {
        row.node
        for row in rows
        if row.may_come and row.verdict != "unknown" and (content or row.verdict == "guaranteed")
    }
    plan = eviction_advice(found.cluster, "default", name)
    assert plan is not None
    if plan.reservation is None:
        assert (plan.takes is not None) == bool(sure), (name, plan.text)
        assert plan.takes is None or plan.takes in sure
    status = manifest["status"]
    if "group" in str(manifest["metadata"]) or "nominatedNodeName" in status:
        return  # a pod that does not exist yet has no place, and comes beside its siblings
    may_come = {row.node: row.score for row in rows if row.may_come}
    text = json.dumps({"kind": "Pod", **manifest})
    (judged,) = judge(found.cluster, read_all(text)).judged
    assert {row.node: row.score for row in judged.answers if row.may_come} == may_come
    page = Pages(found.cluster).what_if(text).partition('id="answer"')[2]
    assert set(re.findall(r'<th scope="row"><a [^>]*>(.*?)</a>', page)) == may_come.keys()
