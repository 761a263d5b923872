"""Pods that need no rack leave whole racks to the groups that need one."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import pod, record_of
from tests.scheduler_extender.verbs.racks import Scheduler, member, rack
from topology.core.devices import NodeName
from topology.core.report import Report
from topology.machines import machine

NVLINK = {"link": "nvlink"}
OUTSIDE = "dgx-00"


def single(name: str = "single", gpus: int = 1, **annotations: str) -> dict[str, Any]:
    return pod(gpus, annotations or None, name=name, uid=f"uid-{name}")


def best(scheduler: Scheduler, manifest: dict[str, Any]) -> set[str]:
    """The nodes with the best score, of those that pass."""
    scores = scheduler.scores(manifest, scheduler.passing(manifest))
    return {name for name, score in scores.items() if score == max(scores.values())}


def hold(scheduler: Scheduler, name: str, node: str, gpus: int = 4) -> PodRecord:
    """A pod that others bound."""
    bound = replace(record_of(single(name, gpus)), node=NodeName(node))
    scheduler.cluster.put_pod(bound)
    return bound


def wait(scheduler: Scheduler, manifest: dict[str, Any]) -> None:
    """A pod that waits, as the watch brings it."""
    scheduler.cluster.put_pod(record_of(manifest))


def add_machine(cluster: Cache, name: str, kind: str = "dgx1-v100") -> None:
    cluster.put_record(machine(kind).topology(name), Report())


@pytest.fixture
def scheduler() -> Scheduler:
    """Two racks of six trays and a DGX-1V; a tray of ``b`` is in use. A group has asked for a
    rack."""
    found = Scheduler({"a": 6, "b": 6})
    add_machine(found.cluster, OUTSIDE)
    found.names.append(OUTSIDE)
    hold(found, "other", "b-00")
    wait(found, member("train-0", size=6))
    return found


def test_a_pod_goes_where_it_breaks_into_no_rack(scheduler: Scheduler) -> None:
    assert best(scheduler, single()) == {OUTSIDE}
    assert best(scheduler, single(gpus=2, **NVLINK)) == {OUTSIDE}, "whatever it damages there"


def test_else_into_the_rack_that_is_broken_already(scheduler: Scheduler) -> None:
    hold(scheduler, "whole", OUTSIDE, 8)
    assert best(scheduler, single()) == set(rack("b", 6)) - {"b-00"}
    assert scheduler.place(single()) in rack("b", 6)
    assert len(scheduler.passing(member("train-0", size=6))) == 6, "one rack is whole still"


def test_and_there_where_fragmentation_costs_least(scheduler: Scheduler) -> None:
    hold(scheduler, "whole", OUTSIDE, 8)
    hold(scheduler, "half", "b-03", 2)
    assert best(scheduler, single(gpus=2, **NVLINK)) == {"b-03"}


def test_a_rack_that_empties_is_whole_again(scheduler: Scheduler) -> None:
    hold(scheduler, "whole", OUTSIDE, 8)
    pods = [hold(scheduler, f"a{i}", f"a-{i:02}") for i in (0, 1)]
    assert best(scheduler, single()) == set(rack("a", 6)) - {"a-00", "a-01"}
    for one in pods:
        scheduler.cluster.put_pod(replace(one, phase="Succeeded"))
    assert best(scheduler, single()) == set(rack("b", 6)) - {"b-00"}


def test_a_rack_of_which_a_tray_is_cordoned_has_less_left(scheduler: Scheduler) -> None:
    hold(scheduler, "whole", OUTSIDE, 8)
    for tray in ("a-00", "a-01"):
        scheduler.cluster.put_node(NodeName(tray), NodeObject(cordoned=True))
    assert best(scheduler, single()) <= set(rack("a", 6))


def test_where_no_pod_asks_for_racks_a_tray_is_a_node_like_any_other() -> None:
    scheduler = Scheduler({"a": 6})
    add_machine(scheduler.cluster, OUTSIDE)
    scheduler.names.append(OUTSIDE)
    pair = single(gpus=2, **NVLINK)
    assert best(scheduler, pair) == set(rack("a", 6)), "a tray loses less than a DGX-1V"
    scheduler.filter(member("train-0", size=6))
    assert best(scheduler, pair) == set(rack("a", 6)), "a question alone changes nothing"
    wait(scheduler, member("train-0", size=6))
    assert best(scheduler, pair) == {OUTSIDE}


def test_a_machine_with_an_nvlink_domain_of_its_own_is_no_rack() -> None:
    scheduler = Scheduler({"alone": 1})
    add_machine(scheduler.cluster, OUTSIDE)
    scheduler.names.append(OUTSIDE)
    wait(scheduler, member("train-0", size=2))
    assert best(scheduler, single(gpus=4, **NVLINK)) == {"alone-00"}


def test_of_many_racks_the_fullest_stands_out() -> None:
    names = [f"rack{i:02}" for i in range(40)]
    scheduler = Scheduler(dict.fromkeys(names, 3))
    wait(scheduler, member("train-0", size=3))
    for i, name in enumerate(names[:36]):
        hold(scheduler, f"held-{i}", f"{name}-00", 1 + i % 4)
        hold(scheduler, f"more-{i}", f"{name}-01", 1 + i % 3)
    hold(scheduler, "full", "rack11-02", 3)
    assert best(scheduler, single()) == {"rack11-01", "rack11-02"}


def test_a_group_that_shares_something_else_leaves_racks_whole_too(scheduler: Scheduler) -> None:
    one_node = {"group-domain": "node", "link": "nvlink"}
    asked = member("pair-0", "pair", size=2, gpus=2, annotations=one_node)
    assert best(scheduler, asked) == {OUTSIDE}
