"""A rule is a file and a line: all who ask see a new one, and a feature that is taken out is gone.

The new rule is planted here. The files of features are taken out of a copy of the program.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.explain.explanation import Explanation, explanation_of
from scheduler_extender.explain.groupfit import judge
from scheduler_extender.explain.idle import idle_pods, what_ends_would_do
from scheduler_extender.explain.waitingreasons import rejection_counts
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.files.podfile import read_all
from scheduler_extender.framework.members import Member
from scheduler_extender.framework.question import Question
from scheduler_extender.framework.results import Results
from scheduler_extender.framework.rule import NodeEvaluation
from scheduler_extender.framework.rules import RULES
from scheduler_extender.framework.setrule import ByRejection, NodeCheck, OfSet
from scheduler_extender.framework.setrules import NAME_RULES, SET_RULES
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.web.pages import Pages
from scheduler_extender.wire import BindingArgs, MetaPod, MetaVictims, Pod, PreemptionArgs
from tests.nodes import pod, record_of, switched
from tests.scheduler_extender.kube.test_waker import Api
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.placement import Reason, Rejection
from topology.core.report import Allocation, IdleAllocation, Report

ROOT = Path(__file__).resolve().parents[3]
ODD = Rejection("the node is odd", False, Reason.HARDWARE)
GPU = "nvidia.com/gpu"
FREE, HELD = NodeName("free"), NodeName("held")
ASKS = pod(2, {"link": "nvlink"}, name="wants", uid="wants")


def odd_shape(node: NodeEvaluation) -> Rejection | None:
    """Refuses nodes of four GPUs: what equal nodes answer alike."""
    topology = node.info.topology
    return ODD if topology is not None and len(topology.gpus) == 4 else None


def odd_name(question: Question, snapshot: Snapshot) -> NodeCheck | None:
    """Refuses nodes by their names."""
    return lambda info: ODD if info.name in (FREE, HELD) else None


def odd_together(question: Question, member: Member | None) -> OfSet | None:
    """Refuses all nodes for what they have answered together."""

    def sort_out(results: Results, by_rejection: ByRejection, deadline: Deadline) -> None:
        if None in by_rejection:
            by_rejection[ODD] = by_rejection.pop(None)

    return sort_out


def cluster_of(node: NodeName) -> Cache:
    """A free node, or one whose GPUs an idle pod of low priority holds; a pod waits."""
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    cluster.budgets = ()
    report = Report("boot", 1, observed_at="2026-01-01T12:07:00Z")
    if node == HELD:
        held = pod(4, name="low", uid="low", node=HELD, phase="Running")
        held["spec"]["priority"] = -1
        cluster.put_pod(record_of(held))
        ids = tuple(DeviceId(gpu.uuid) for gpu in switched(4).gpus)
        has = Allocation(PodUid("low"), "default", "low", "main", GPU, ids)
        idle = IdleAllocation(PodUid("low"), "main", GPU, "2026-01-01T11:00:00Z")
        report = replace(report, allocations=(has,), idle=(idle,))
    cluster.put_pod(replace(record_of(ASKS), called_unschedulable=True))
    cluster.put_record(switched(4, node), report)
    return cluster


def takes_free() -> dict[str, bool]:
    """Which answers say that the free node takes the pod."""
    cluster, wire = cluster_of(FREE), msgspec.convert(ASKS, Pod)
    snapshot, record, api = cluster.snapshot(), record_of(ASKS), Api()
    waker = Waker(cluster, api)
    cluster.tell_of([FREE])
    plan = eviction_advice(cluster, "default", "wants")
    waker.round(0.0)
    answers = {
        "filter": verbs.filter_nodes(cluster, wire, [FREE]).node_names == [FREE],
        "prioritize": verbs.prioritize(cluster, wire, [FREE])[0].score > 0,
        "waker": api.woken == ["wants"],
        "why": [row.passes for row in answers_to(snapshot, record)] == [True],
        "Event": not rejection_counts(snapshot, record, NO_DEADLINE).rejected,
        "unblock": plan is not None and plan.takes == FREE,
        "what if": bool(re.search(r'<th scope="row"><a [^>]*>free</a>', _what_if(cluster))),
        "check": judge(cluster, read_all(json.dumps({"kind": "Pod", **ASKS}))).all_may_come,
    }
    try:
        args = BindingArgs("wants", "default", PodUid("wants"), FREE)
        verbs.bind(cluster, FileBinder(cluster), args, lambda: "2026-01-01T00:00:00Z")
    except verbs.BindError:
        return {**answers, "bind": False}
    return {**answers, "bind": True}


def _what_if(cluster: Cache) -> str:
    return Pages(cluster).what_if(json.dumps({"kind": "Pod", **ASKS})).partition('id="answer"')[2]


def helped_by_an_end() -> dict[str, bool]:
    """Which answers say that the end of the other pod would help."""
    cluster = cluster_of(HELD)
    snapshot = cluster.snapshot()
    victims: dict[str, MetaVictims | None] = {HELD: MetaVictims([MetaPod(PodUid("low"))], 0)}
    args = PreemptionArgs(msgspec.convert(ASKS, Pod), meta_victims=victims)
    plan = eviction_advice(cluster, "default", "wants")
    answer = explanation_of(snapshot, record_of(ASKS))
    assert isinstance(answer, Explanation)
    idle = what_ends_would_do(snapshot, idle_pods(snapshot, 1767272820.0), NO_DEADLINE)
    return {
        "preempt": HELD in verbs.preempt(cluster, args).meta_victims,
        "unblock": plan is not None and plan.plan is not None,
        "helps": "low" in str(answer.helps),
        "idle": bool(idle.completes),
    }


def test_a_new_rule_counts_in_every_answer() -> None:
    assert all(takes_free().values()), takes_free()
    assert all(helped_by_an_end().values()), helped_by_an_end()
    RULES.append(odd_shape)
    try:
        shaped = takes_free() | helped_by_an_end()
    finally:
        RULES.pop()
    NAME_RULES.append(odd_name)
    try:
        named = takes_free() | helped_by_an_end()
    finally:
        NAME_RULES.pop()
    SET_RULES.append(odd_together)
    try:
        together = takes_free() | helped_by_an_end()
    finally:
        SET_RULES.pop()
    # kube-scheduler asks only for scores of nodes that filter has passed.
    assert together.pop("prioritize")
    assert not any(together.values()), together
    assert not any(shaped.values()), shaped
    assert not any(named.values()), named


FEATURES = (
    "rules/memory.py",
    "rules/backoff.py",
    "rules/gangs.py",
    "rules/reservations.py",
    "setrules/groups.py",
    "setrules/claims.py",
)
SHOWN = """
import random, sys
import msgspec
import pytest
from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.waitingreasons import rejection_counts
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.verbs.filtering import filtered
from scheduler_extender.verbs.prioritizing import prioritize
from scheduler_extender.wire import Pod
from tests.nodes import record_of
from tests.property.test_consistent_answers import world
for seed in range(12):
    found = world(random.Random(seed))
    for name, manifest in found.waiting.items():
        if "group" in str(manifest["metadata"]) or "nominatedNodeName" in manifest["status"]:
            found.cluster.drop_pod(record_of(manifest).uid)
    for name, manifest in found.waiting.items():
        if "group" in str(manifest["metadata"]) or "nominatedNodeName" in manifest["status"]:
            continue
        record, wire = record_of(manifest), msgspec.convert(manifest, Pod)
        snapshot = found.cluster.snapshot()
        names = [facts.name for facts in snapshot.nodes]
        told = filtered(snapshot, wire, names)
        print(told.passed, told.rejected, prioritize(found.cluster, wire, told.passed))
        print([(row.node, row.reason, row.score) for row in answers_to(snapshot, record)])
        print(rejection_counts(snapshot, record, NO_DEADLINE))
        print(eviction_advice(found.cluster, "default", name))
"""


def shown(root: Path) -> str:
    """What all who ask say of pods without groups and places, by the program below ``root``."""
    done = subprocess.run(
        [sys.executable, "-c", SHOWN], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A copy of the program and of what the questions are made with, and its answers."""
    root = tmp_path_factory.mktemp("program")
    for name in ("scheduler_extender", "topology", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("e2e"))
    return root, shown(root)


@pytest.mark.parametrize("file", FEATURES)
def test_a_feature_is_deleted_by_deleting_its_file_and_its_line(
    file: str, copied: tuple[Path, str]
) -> None:
    """Pods that do not use it are answered as before."""
    root, before = copied
    framework = root / "scheduler_extender" / "framework"
    feature, registry = framework / file, framework / file.split("/")[0] / "__init__.py"
    text, lines = feature.read_text(), registry.read_text()
    rule = feature.stem
    left = re.sub(rf"\b{rule}(\.\w+)?(,\s*)?", "", lines)
    assert rule not in left
    feature.unlink()
    registry.write_text(left)
    try:
        assert shown(root) == before
        assert before.count("\n") > 50
    finally:
        feature.write_text(text)
        registry.write_text(lines)


def test_every_rule_that_refuses_is_reported() -> None:
    """kube-scheduler hears the one that no eviction turns; people hear the others, too."""
    RULES.append(odd_shape)
    try:
        answer = explanation_of(cluster_of(HELD).snapshot(), record_of(ASKS))
    finally:
        RULES.pop()
    assert isinstance(answer, Explanation)
    (row,) = answer.nodes
    assert (row.message, row.resolvable, row.also) == (ODD.message, False, ["not enough free GPUs"])
