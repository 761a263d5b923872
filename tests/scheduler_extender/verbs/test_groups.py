"""Pods of one group share a domain that holds them all."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.deadline import within
from scheduler_extender.framework import equivalence, setrules
from scheduler_extender.framework.groupquestion import GroupAnswer
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.groups.groups import (
    DISAGREE,
    ELSEWHERE,
    GROUP_SPREAD,
    NEVER,
    NO_DOMAIN,
    NO_LONGER,
    OFF_FABRIC,
    RESERVED_FOR_GROUP,
    TOO_SMALL,
)
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import STILL_WORKING, filter_nodes, preempt
from scheduler_extender.verbs.assume import STILL_COUNTING
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs
from tests.nodes import pod, record_of
from tests.scheduler_extender.kube.test_waker import Api
from tests.scheduler_extender.serving import running
from tests.scheduler_extender.verbs.racks import RACK, Scheduler, member, rack
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.report import Health, Report
from topology.machines import machine


@pytest.fixture
def scheduler() -> Scheduler:
    """Two racks of 18 trays, and half a rack."""
    return Scheduler({"a": 18, "b": 18, "half": 9})


def record(manifest: dict[str, object], node: str) -> PodRecord:
    return replace(record_of(manifest), node=NodeName(node) if node else None)


def test_a_bind_that_would_count_reservations_for_long_is_tried_again() -> None:
    """What it has counted stays remembered, so that the next try is quick."""
    scheduler = Scheduler({"a": 2, "b": 2})
    assert scheduler.bind(member("other", group="other", size=2), "a-00") == ""
    seconds = iter(range(10_000))
    scheduler.cluster.clock = lambda: float(next(seconds))
    assert scheduler.bind(member("m0", size=2), "b-00") == STILL_COUNTING
    scheduler.cluster.clock = lambda: 0.0
    assert scheduler.bind(member("m0", size=2), "b-00") == ""


def test_the_time_for_reservations_begins_when_the_node_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node's own answer may take longer than that; the gang would be bound in part."""
    scheduler, now = Scheduler({"a": 2}), [0.0]
    scheduler.cluster.clock = lambda: now[0]

    def decided(*asked: Any) -> Any:
        now[0] += 1.0
        return decide(*asked)

    monkeypatch.setattr(equivalence, "decide", decided)
    assert scheduler.bind(member("m0", size=2), "a-00") == ""


def test_a_bind_is_not_written_on_reservations_that_are_counted_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def counted_in_part(*asked: Any, **how: Any) -> GroupAnswer:
        return GroupAnswer({None: ["a-00"]}, ["a"], "a", late=True)

    monkeypatch.setattr(setrules.groups, "ask_group", counted_in_part)
    assert Scheduler({"a": 2}).bind(member("m0", size=2), "a-00") == STILL_COUNTING


def test_the_first_member_may_start_in_each_rack_that_holds_the_group(
    scheduler: Scheduler,
) -> None:
    found = scheduler.filter(member("first"))
    assert found.node_names == rack("a") + rack("b")
    assert found.unresolvable == dict.fromkeys(rack("half", 9), NEVER.message)


def test_the_whole_group_fills_one_rack(scheduler: Scheduler) -> None:
    nodes = {scheduler.place(member(f"m{i}")) for i in range(18)}
    assert nodes in (set(rack("a")), set(rack("b")))


def test_later_members_go_where_the_first_is(scheduler: Scheduler) -> None:
    assert scheduler.bind(member("first"), "b-03") == ""
    found = scheduler.filter(member("second"))
    assert set(found.node_names or ()) == set(rack("b")) - {"b-03"}
    assert found.unresolvable == dict.fromkeys(rack("a") + rack("half", 9), ELSEWHERE.message)
    assert scheduler.bind(member("second"), "a-00") == ELSEWHERE.message


def test_a_group_starts_only_where_others_leave_it_room(scheduler: Scheduler) -> None:
    """Ten of the eighteen trays of rack a are spoken for, though one is taken only."""
    scheduler.bind(member("x0", "other", 10), "a-00")
    assert set(scheduler.passing(member("t0", size=9))) == {*rack("b"), *rack("half", 9)}
    assert scheduler.bind(member("t0", size=9), "a-01") == TOO_SMALL.message
    small = scheduler.filter(member("s0", "small", 8))
    assert {n for n in small.node_names or () if n.startswith("a")} < set(rack("a"))
    assert set(small.failed.values()) == {RESERVED_FOR_GROUP.message, "not enough free GPUs"}


def test_two_groups_share_a_rack_to_the_last_tray(scheduler: Scheduler) -> None:
    pods = {
        "x": [member(f"x{i}", "x", 10) for i in range(10)],
        "y": [member(f"y{i}", "y", 8) for i in range(8)],
    }
    assert scheduler.bind(pods["x"][0], "a-00") == ""
    allowed = [n for n in scheduler.passing(pods["y"][0]) if n.startswith("a")]
    assert len(allowed) == 8
    assert scheduler.bind(pods["y"][0], allowed[0]) == ""
    for i in range(1, 10):
        for name in ("y", "x"):
            if i < len(pods[name]):
                assert scheduler.place(pods[name][i]).startswith("a")


def test_a_rack_that_can_no_longer_hold_the_group_takes_no_more_of_it(
    scheduler: Scheduler,
) -> None:
    scheduler.bind(member("first"), "b-00")
    scheduler.cluster.drop_record(NodeName("b-17"))
    assert scheduler.reasons(member("second")) == {
        NO_LONGER.message,
        ELSEWHERE.message,
        "not enough free GPUs",
        "no topology report",
    }
    assert scheduler.passing(member("second")) == []
    # Its members are on their way out: then it is as if they had never started.
    first = record(member("first"), "b-00")
    scheduler.cluster.put_pod(replace(first, terminating=True))
    assert scheduler.passing(member("second")) == rack("a")


def test_members_that_have_succeeded_have_come(scheduler: Scheduler) -> None:
    for i in range(17):
        done = record(member(f"m{i}"), rack("a")[i])
        scheduler.cluster.put_pod(replace(done, phase="Succeeded"))
    assert "half-00" in scheduler.passing(member("last"))


def test_pods_of_an_earlier_run_are_none_of_this_one(scheduler: Scheduler) -> None:
    """A CronJob keeps the pods of its last runs, all of one group if its template names it."""
    for run in range(3):
        for i in range(18):
            done = record(member(f"run{run}-{i}"), rack("a")[i])
            scheduler.cluster.put_pod(replace(done, phase="Succeeded"))
        assert set(scheduler.passing(member("first"))) == {*rack("a"), *rack("b")}
    assert scheduler.bind(member("first"), "a-00") == ""
    others = scheduler.passing(member("x0", "x", 9))
    assert set(others) == {*rack("b"), *rack("half", 9)}, "rack a is kept for the rest of the run"


def test_an_earlier_run_may_have_had_another_size(scheduler: Scheduler) -> None:
    for i in range(9):
        done = record(member(f"old{i}", size=9), rack("a")[i])
        scheduler.cluster.put_pod(replace(done, phase="Succeeded"))
    assert scheduler.passing(member("first"))
    assert scheduler.bind(member("first"), "a-00") == ""
    assert scheduler.bind(member("second"), "a-01") == ""


def test_members_that_differ_are_reported(scheduler: Scheduler) -> None:
    scheduler.bind(member("first"), "b-00")
    assert scheduler.reasons(member("second", size=17)) >= {DISAGREE.message}
    assert scheduler.passing(member("second", size=17)) == []
    assert scheduler.bind(member("second", size=17), "b-01") == DISAGREE.message
    preferred = member("third", size=17, annotations={**RACK, "policy": "preferred"})
    assert set(scheduler.scores(preferred, scheduler.passing(preferred)).values()) <= set(range(11))


def test_the_same_name_in_another_namespace_is_another_group(scheduler: Scheduler) -> None:
    scheduler.bind(member("first"), "b-00")
    foreign = member("foreign")
    foreign["metadata"]["namespace"] = "team-b"
    assert scheduler.passing(foreign) == rack("a")


def test_of_two_domains_the_larger_part_decides(scheduler: Scheduler) -> None:
    """They were bound without us; among equals the first domain by name counts."""
    for i, node in enumerate(("a-00", "b-00", "b-01")):
        scheduler.cluster.put_pod(record(member(f"m{i}", size=5), node))
    found = scheduler.filter(member("next", size=5))
    assert {name[0] for name in found.node_names or ()} == {"b"}
    assert found.unresolvable == dict.fromkeys(
        [*rack("a")[1:], *rack("half", 9)], GROUP_SPREAD.message
    )


def test_a_node_without_a_fabric_is_in_no_nvlink_domain(scheduler: Scheduler) -> None:
    scheduler.cluster.put_record(machine("dgx-b200").topology("alone"), Report())
    found = scheduler.filter(member("first"), [*rack("a"), "alone"])
    assert found.unresolvable == {"alone": NO_DOMAIN.message}


def test_a_tray_off_its_fabric_is_in_no_nvlink_domain(scheduler: Scheduler) -> None:
    """Whatever label feature discovery has left on the Node."""
    tray = machine("gb200-tray").topology("a-00", group="a")
    assert tray.fabric is not None
    label = f"{tray.fabric.cluster_uuid}.{tray.fabric.clique_id}"
    waits = Health(tray.gpus[2].uuid, True, "FabricNotReady")

    def seen(topology: NodeTopology, *health: Health) -> None:
        scheduler.cluster.put_record(topology, Report(health=health))

    scheduler.cluster.put_node(
        NodeName("a-00"), NodeObject(labels={"nvidia.com/gpu.clique": label})
    )
    seen(replace(tray, fabric=None), waits)
    found = scheduler.filter(member("first"), rack("a"))
    assert found.unresolvable["a-00"] == OFF_FABRIC.message
    assert set(found.unresolvable) == set(rack("a")), "17 trays are too few for the group of 18"
    seen(tray)
    assert scheduler.filter(member("first"), rack("a")).node_names == rack("a")


def test_the_label_of_feature_discovery_names_the_domain_too(scheduler: Scheduler) -> None:
    hgx = [f"hgx-{i}" for i in range(3)]
    for i, name in enumerate(hgx):
        scheduler.cluster.put_record(machine("dgx-b200").topology(name), Report())
        labels = {"nvidia.com/gpu.clique": f"c.{min(i, 1)}"}
        scheduler.cluster.put_node(NodeName(name), NodeObject(labels=labels))
    found = scheduler.filter(member("first", size=2, gpus=8), hgx)
    assert found.node_names == ["hgx-1", "hgx-2"]
    assert found.unresolvable == {"hgx-0": NEVER.message}


def test_any_node_label_names_a_domain(scheduler: Scheduler) -> None:
    for i, name in enumerate(scheduler.names):
        labels = {"example.com/block": f"block-{i % 5}"} if i < 40 else {}
        scheduler.cluster.put_node(NodeName(name), NodeObject(labels=labels))
    asked = member("first", size=8, annotations={"group-domain": "example.com/block"})
    assert scheduler.bind(asked, "a-02") == ""
    asked = member("second", size=8, annotations={"group-domain": "example.com/block"})
    expected = {n for i, n in enumerate(scheduler.names) if i < 40 and i % 5 == 2} - {"a-02"}
    assert set(scheduler.passing(asked)) == expected


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("nodes", ": did you mean node?"),
        ("Node", ": did you mean node?"),
        ("nvlink_domain", ": did you mean nvlink-domain?"),
        ("nvlink", ": did you mean nvlink-domain?"),
        ("example.com/nothing", " (domains without a label are node and nvlink-domain)"),
        ("rack", " (domains without a label are node and nvlink-domain)"),
    ],
)
def test_a_label_that_no_node_has_is_no_domain(
    scheduler: Scheduler, written: str, hint: str
) -> None:
    asked = member("first", annotations={"group-domain": written})
    message = f"no node has the label {written} of group-domain{hint}"
    assert scheduler.filter(asked).unresolvable == dict.fromkeys(scheduler.names, message)
    assert scheduler.bind(asked, "a-00") == message
    scheduler.cluster.put_node(NodeName("a-00"), NodeObject(labels={written: "x"}))
    assert scheduler.reasons(asked) == {NO_DOMAIN.message, NEVER.message}


def test_a_reason_quotes_a_long_label_in_part(scheduler: Scheduler) -> None:
    asked = member("first", annotations={"group-domain": f"{'example.' * 25}com/{'block' * 12}"})
    (reason,) = scheduler.reasons(asked)
    assert reason.startswith("no node has the label example.")
    assert len(reason) < 200


def test_the_label_of_a_node_may_change(scheduler: Scheduler) -> None:
    asked = member("first", size=2, annotations={"group-domain": "rack"})
    assert scheduler.passing(asked) == []
    for name in ("a-00", "b-00"):
        labels = {"rack": "r1"}
        scheduler.cluster.put_node(NodeName(name), NodeObject(labels=labels))
    assert scheduler.passing(asked) == ["a-00", "b-00"]
    scheduler.cluster.put_node(NodeName("b-00"), NodeObject(labels={"rack": "r2"}))
    assert scheduler.passing(asked) == []


@pytest.mark.parametrize("before", [NodeObject(cordoned=True, labels={"row": "one"}), NodeObject()])
def test_a_pod_that_waits_for_a_domain_is_woken_when_a_node_joins_it(before: NodeObject) -> None:
    scheduler, api = Scheduler({"a": 2}), Api()
    waker = Waker(scheduler.cluster, api, clock=lambda: 0.0)
    in_row = NodeObject(labels={"row": "one"})
    scheduler.cluster.put_node(NodeName("a-00"), in_row)
    scheduler.cluster.put_node(NodeName("a-01"), before)
    asked = member("first", size=2, annotations={"group-domain": "row"})
    waits = replace(record(asked, ""), called_unschedulable=True)
    scheduler.cluster.put_pod(waits)
    waker.round(0.0)
    api.woken.clear()
    assert scheduler.filter(asked, ["a-00"]).node_names == []
    scheduler.cluster.put_node(NodeName("a-01"), in_row)
    assert scheduler.passing(asked) == scheduler.names
    waker.round(100.0)
    assert api.woken == [waits.uid]


def test_a_preferred_domain_rejects_no_pod_and_scores_best(scheduler: Scheduler) -> None:
    preferred = {**RACK, "policy": "preferred"}
    scheduler.bind(member("first", annotations=preferred), "b-00")
    asked = member("second", annotations=preferred)
    passing = scheduler.passing(asked)
    assert set(passing) == set(scheduler.names) - {"b-00"}
    scores = scheduler.scores(asked, passing)
    best = {name for name, score in scores.items() if score == max(scores.values())}
    assert best == set(rack("b")) - {"b-00"}


def test_racks_fill_up_before_a_whole_one_is_begun(scheduler: Scheduler) -> None:
    for i in range(6):
        scheduler.bind(member(f"x{i}", "other", 6), f"b-{i:02}")
    scores = scheduler.scores(member("first", size=9), scheduler.names)
    best = {name for name, score in scores.items() if score == max(scores.values())}
    assert best == set(rack("half", 9))
    taken = {f"b-{i:02}" for i in range(6)}
    scores = scheduler.scores(member("first", size=12), scheduler.names)
    best = {name for name, score in scores.items() if score == max(scores.values())}
    assert best == set(rack("b")) - taken


def test_plain_members_share_a_domain_too(scheduler: Scheduler) -> None:
    plain = {**RACK, "link": ""}
    scheduler.bind(member("first", annotations=plain), "b-00")
    asked = member("second", annotations=plain)
    assert set(scheduler.passing(asked)) == set(rack("b")) - {"b-00"}
    found = scheduler.filter(asked, [*rack("b"), "never-heard-of"])
    assert found.unresolvable == {"never-heard-of": NO_DOMAIN.message}


def test_where_there_is_no_time_the_answer_is_an_error(scheduler: Scheduler) -> None:
    asked = msgspec.convert(member("first"), Pod)
    found = filter_nodes(
        scheduler.cluster, asked, scheduler.names, within(scheduler.cluster.clock, 0.0)
    )
    assert found.error == STILL_WORKING
    assert "a-00" in (filter_nodes(scheduler.cluster, asked, scheduler.names).node_names or ())


@pytest.mark.parametrize(
    "labels", [{}, {"scheduling.x-k8s.io/pod-group": "g"}], ids=["group", "gang"]
)
def test_members_that_are_bound_at_the_same_time_do_not_refuse_each_other(
    scheduler: Scheduler, labels: dict[str, str]
) -> None:
    """A bind sees the places that others have taken since it asked how many had come."""
    pods = [member(f"m{i}", "" if labels else "train", labels=labels) for i in range(18)]
    assert all(scheduler.passing(each) for each in pods)
    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(18) as pool:
            assert set(pool.map(scheduler.bind, pods, rack("b"))) == {""}
    finally:
        sys.setswitchinterval(switches)


def test_explain_says_where_the_group_is() -> None:
    trays = [machine("gb200-tray").topology(name, group="a") for name in rack("a", 3)]
    with running(*trays) as service:
        first, second = member("first", size=3), member("second", size=3)
        assert service.filter(first, *rack("a", 3))["NodeNames"] == rack("a", 3)
        assert service.bind(first, "a-01") == ""
        service.cluster.put_pod(record(second, ""))
        found = service.admin.get("/v1/explain/default/second").json()
        (domain,) = found["group"].pop("domains")
        assert domain == f"{trays[0].fabric.cluster_uuid}.1" if trays[0].fabric else ""
        assert found["group"] == {
            "name": "train",
            "gang": False,
            "size": 3,
            "domain": "nvlink-domain",
            "come": 1,
            "nodes": {"a-01": 1},
        }
        assert {row["node"]: row["message"] for row in found["nodes"]} == {
            "a-00": "",
            "a-01": "not enough free GPUs",
            "a-02": "",
        }
        service.cluster.drop_record(NodeName("a-02"))
        found = service.admin.get("/v1/explain/default/second").json()
        assert {row["node"]: row["message"] for row in found["nodes"]} == {
            "a-00": NO_LONGER.message,
            "a-01": "not enough free GPUs",
        }


def full(scheduler: Scheduler, names: list[str]) -> None:
    for name in names:
        holder = pod(4, name=f"held-{name}", uid=f"held-{name}")
        scheduler.cluster.put_pod(record(holder, name))


def test_an_eviction_helps_only_where_the_whole_group_then_fits(scheduler: Scheduler) -> None:
    """One held tray of rack a, two of rack b; each eviction frees one."""
    full(scheduler, ["a-00", "b-00", "b-01", *rack("half", 9)])
    asked = msgspec.convert(member("first"), Pod)
    victims = {name: MetaVictims([MetaPod(f"held-{name}")]) for name in ("a-00", "b-00", "half-00")}
    found = preempt(scheduler.cluster, PreemptionArgs(asked, meta_victims={**victims}))
    assert found.meta_victims.keys() == {"a-00"}
