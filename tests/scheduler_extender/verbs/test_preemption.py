"""preempt drops the evictions that would not help, and never answers with a null."""

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.framework import equivalence, nodedecision
from scheduler_extender.framework.equivalence import answer
from scheduler_extender.state.answers.decision import Decision, Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs.preemption import preempt
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs, encode
from tests.deadlines import ending_when
from tests.nodes import bridged, pcie, pod, record_of, switched
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.memo import forget
from topology.core.report import Allocation, Report
from topology.core.requests import Constraints, gpu_request
from topology.machines import machine

NVLINK = {"link": "nvlink"}


@pytest.fixture
def cluster() -> Cache:
    """Three nodes whose GPUs are all held: 0 by a, 1 by b, and so on."""
    found = Cache(lambda: 0.0, Settings(stale_after=None))
    for node in (bridged(), switched(), pcie()):
        held = []
        for i, holder in enumerate("abcd"):
            uid = PodUid(f"{node.name}-{holder}")
            ids = (DeviceId(f"GPU-{i}"),)
            held.append(Allocation(uid, "default", uid, "main", "nvidia.com/gpu", ids))
            manifest = pod(1, name=str(uid), uid=uid, node=node.name, phase="Running")
            found.put_pod(record_of(manifest))
        found.put_record(node, Report(allocations=tuple(held)))
    return found


def ask(cluster: Cache, wanted: dict[str, Any], victims: dict[str, str | None]) -> dict[str, Any]:
    offered = {
        node: None
        if holders is None
        else {"Pods": [{"UID": f"{node}-{h}"} for h in holders], "NumPDBViolations": len(holders)}
        for node, holders in victims.items()
    }
    body = {"Pod": wanted, "NodeNameToVictims": None, "NodeNameToMetaVictims": offered}
    args = msgspec.json.decode(msgspec.json.encode(body), type=PreemptionArgs)
    answer = encode(preempt(cluster, args))
    assert b"null" not in answer
    found: dict[str, Any] = msgspec.json.decode(answer)["NodeNameToMetaVictims"]
    for node, kept in found.items():
        assert kept == offered[node]
    return found


PAIR = pod(2, NVLINK)
PREFERRED = pod(2, {**NVLINK, "policy": "preferred"})


@pytest.mark.parametrize(
    ("wanted", "offered", "kept"),
    [
        # 0 and 1 are a pair, 1 and 2 are not; on a switch any two are; no PCIe box ever helps.
        (PAIR, {"bridged": "bc", "switched": "bc", "pcie": "ab"}, {"switched"}),
        # Under `any` the pair is all there is to hand out; with a third free it is no promise.
        (PAIR, {"bridged": "ab"}, {"bridged"}),
        (PAIR, {"bridged": "abc"}, set()),
        (pod(2), {"pcie": "ab"}, {"pcie"}),
        (pod(3), {"pcie": "ab"}, set()),
        (PREFERRED, {"pcie": "ab"}, {"pcie"}),
        (pod(2), {"pcie": "", "switched": None}, set()),
        (pod(2), {}, set()),
        (pod(None), {"pcie": "a", "unknown": "x"}, {"pcie", "unknown"}),
        (pod(2, {"link": "nvlnk"}), {"switched": "ab"}, set()),
        (pod(1, NVLINK), {"unknown": "x"}, set()),
    ],
    ids=[
        "links",
        "a bridged pair comes free",
        "more than the pair comes free",
        "plain pods need the count",
        "too few for a plain pod",
        "preferred pods need the count",
        "nothing to evict",
        "no node is offered",
        "a pod without GPUs is none of ours",
        "a pod that cannot be read evicts nobody",
        "a node that nobody told us of",
    ],
)
def test_only_evictions_that_help_remain(
    cluster: Cache, wanted: dict[str, Any], offered: dict[str, str | None], kept: set[str]
) -> None:
    assert ask(cluster, wanted, offered).keys() == kept


def test_no_pod_is_evicted_elsewhere_for_a_pod_whose_bind_is_open(cluster: Cache) -> None:
    wanted = pod(2, NVLINK)
    record = record_of(wanted)
    offered: dict[str, str | None] = {"bridged": "ab", "switched": "bc"}
    assert ask(cluster, wanted, offered).keys() == {"bridged", "switched"}
    cluster.assume(NodeName("switched"), record)
    assert ask(cluster, wanted, offered).keys() == {"switched"}


def test_whole_pods_are_read_too(cluster: Cache) -> None:
    victims = [pod(1, uid="switched-a"), pod(1, uid="switched-b")]
    body = {
        "Pod": pod(2, NVLINK),
        "NodeNameToVictims": {"switched": {"Pods": victims, "NumPDBViolations": 1}},
        "NodeNameToMetaVictims": None,
    }
    args = msgspec.json.decode(msgspec.json.encode(body), type=PreemptionArgs)
    assert msgspec.json.decode(encode(preempt(cluster, args))) == {
        "NodeNameToMetaVictims": {
            "switched": {
                "Pods": [{"UID": "switched-a"}, {"UID": "switched-b"}],
                "NumPDBViolations": 1,
            }
        }
    }


def test_what_is_supposed_changes_nothing_that_is_known() -> None:
    """A terminated pod stays in the possible states, whatever preempt was asked in between."""
    node = machine("dgx1-v100").topology("n")
    wanted = gpu_request(2, Constraints(link=LinkKind.NVLINK))
    name = NodeName("n")
    found = []
    for asked in (False, True):
        cluster = Cache(lambda: 0.0, Settings(stale_after=None))
        held = []
        for p in (0, 2, 3):
            uid = PodUid(f"h{p}")
            cluster.put_pod(PodRecord(uid, "d", uid, name, gpu_request(1), phase="Running"))
            ids = (DeviceId(node.gpus[p].uuid),)
            held.append(Allocation(uid, "d", uid, "main", "nvidia.com/gpu", ids))
        cluster.put_record(node, Report("b", 1, allocations=tuple(held)))
        bound = PodRecord(PodUid("a"), "d", "a", name, gpu_request(3))
        brief = PodRecord(PodUid("b"), "d", "b", name, gpu_request(1))
        cluster.put_pod(bound)
        cluster.put_pod(brief)
        cluster.put_pod(replace(brief, phase="Succeeded"))
        cluster.drop_pod(brief.uid)
        if asked:
            ask(cluster, pod(2, NVLINK), {name: bound.uid})
        cluster.put_pod(replace(bound, called_unschedulable=True))  # anything that touches the node
        found.append(answer(cluster.snapshot(), cluster.node_info(name), wanted).verdict)
    assert found == ["not-guaranteed", "not-guaranteed"]


def test_nodes_that_would_be_in_one_state_are_worked_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worked_out, decide = [], nodedecision.decide

    def counted(*args: Any) -> Decision:
        worked_out.append(args)
        return decide(*args)

    monkeypatch.setattr(equivalence, "decide", counted)
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    names = [NodeName(f"n{i:03}") for i in range(100)]
    for name in names:
        node, uid = machine("dgx1-v100").topology(name), PodUid(f"{name}-a")
        cluster.put_pod(PodRecord(uid, "d", uid, name, gpu_request(8), phase="Running"))
        held = Allocation(
            uid, "d", uid, "main", "nvidia.com/gpu", tuple(DeviceId(g.uuid) for g in node.gpus)
        )
        cluster.put_record(node, Report("b", 1, allocations=(held,)))
    offered: dict[str, str | None] = dict.fromkeys(names, "a")
    assert ask(cluster, pod(2, NVLINK), offered).keys() == set(names)
    assert len(worked_out) == 1
    request = gpu_request(2, Constraints(link=LinkKind.NVLINK))
    assert (
        answer(cluster.snapshot(), cluster.node_info(names[0]), request).rejection is not None
    )  # as it is, it is full


def test_no_node_passes_that_there_was_no_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the time is up in the middle of finding out what the node would be."""
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    name = NodeName("n")
    node = machine("dgx1-v100").topology(name)
    held = Allocation(
        PodUid("n-a"), "d", "a", "main", "nvidia.com/gpu", (DeviceId(node.gpus[0].uuid),)
    )
    cluster.put_pod(PodRecord(PodUid("n-a"), "d", "n-a", name, gpu_request(1), phase="Running"))
    cluster.put_pod(PodRecord(PodUid("u"), "d", "u", name, gpu_request(5)))
    cluster.put_record(node, Report("b", 1, allocations=(held,)))
    wanted = msgspec.convert(pod(4), Pod)
    args = PreemptionArgs(wanted, None, {"n": MetaVictims([MetaPod("n-a")])})
    forget()
    for parts in range(6):
        left = iter([False] * parts)
        kept = verbs.preempt(cluster, args, ending_when(partial(next, left, True)))
        assert kept.meta_victims == {}
    assert cluster.faults.count == 0
