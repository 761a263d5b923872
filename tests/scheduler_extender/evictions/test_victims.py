"""Where kube-scheduler's victims hold the wrong GPUs, others are named: few, and unimportant."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.evictions.victims import candidates
from scheduler_extender.groupreference import SOURCES, Group, GroupReference
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.attributes import SchedulingAttributes
from scheduler_extender.state.pods.budgets import Budget
from scheduler_extender.state.pods.selecting import Requirement
from scheduler_extender.verbs.preemption import preempt
from scheduler_extender.wire import MetaVictims, PreemptionArgs
from tests.deadlines import ending_when
from tests.nodes import pod
from tests.scheduler_extender.evictions.scenes import (
    CountedRequirement,
    Held,
    cluster_of,
    singles,
    waiting,
)
from topology.core.devices import NodeName, PodUid
from topology.core.requests import gpu_request
from topology.machines import machine

DGX = machine("dgx1-v100").topology("dgx")
BRIDGED = machine("a100-pcie-4-bridged").topology("pairs")
NVLINK = {"link": "nvlink"}


def quad(count: int = 4, priority: int = 1000, **spec: Any) -> dict[str, Any]:
    """A pod of high priority that wants linked GPUs."""
    found = pod(count, NVLINK, name="wants", uid="wants")
    found["spec"] |= {"priority": priority, **spec}
    return found


def ask(
    cluster: Cache, wanted: dict[str, Any], node: str, *victims: str, violations: int = 0
) -> MetaVictims | None:
    """What preempt answers about a node that kube-scheduler has chosen these victims on."""
    chosen = {"Pods": [{"UID": uid} for uid in victims], "NumPDBViolations": violations}
    body = {"Pod": wanted, "NodeNameToMetaVictims": {node: chosen}}
    args = msgspec.json.decode(msgspec.json.encode(body), type=PreemptionArgs)
    return preempt(cluster, args).meta_victims.get(node)


def uids(found: MetaVictims | None) -> list[str] | None:
    """The victims, in order."""
    return None if found is None else [each.uid for each in found.pods or ()]


def test_a_quad_evicts_only_pods_whose_gpus_complete_an_all_linked_set() -> None:
    cluster = cluster_of({DGX: singles(*[0] * 8)})
    found = uids(ask(cluster, quad(), "dgx", "h0", "h2", "h5", "h7"))
    assert found is not None
    assert len(found) == 4
    shape = DGX.shape
    gpus = [int(uid[1:]) for uid in found]
    assert all(shape.links[a][b].nvlinks for a in gpus for b in gpus if a != b)  # type: ignore[union-attr]


def test_the_lowest_priorities_go_first() -> None:
    # 0 to 3 are all linked, and so are 4 to 7: the second half is less important.
    cluster = cluster_of({DGX: singles(5, 5, 5, 5, 1, 1, 1, 2)})
    assert set(uids(ask(cluster, quad(), "dgx", "h4", "h5", "h6", "h0")) or ()) == {
        *("h4", "h5", "h6", "h7")
    }


def test_the_victims_come_in_kube_schedulers_order() -> None:
    cluster = cluster_of({DGX: singles(9, 9, 9, 9, 1, 3, 2, 4)})
    assert uids(ask(cluster, quad(), "dgx", "h4", "h5", "h6", "h0")) == ["h7", "h5", "h6", "h4"]


def test_fewer_pods_go_before_lower_ones() -> None:
    pods = {"big": Held((0, 1, 2, 3), 5), **{f"h{i}": Held((i,), 1) for i in range(4, 8)}}
    cluster = cluster_of({DGX: pods})
    assert uids(ask(cluster, quad(), "dgx", "h4", "h5", "h6")) == ["big"]


def test_victims_that_will_do_are_kube_schedulers_own() -> None:
    cluster = cluster_of({DGX: singles(5, 5, 5, 5, 1, 1, 1, 1)})
    assert uids(ask(cluster, quad(), "dgx", "h0", "h1", "h2", "h3")) == ["h0", "h1", "h2", "h3"]


def test_no_pod_of_the_same_or_a_higher_priority_is_evicted() -> None:
    cluster = cluster_of({BRIDGED: singles(0, 10, 0, 20)})
    assert ask(cluster, quad(2, priority=10), "pairs", "h0", "h2") is None
    assert uids(ask(cluster, quad(2, priority=11), "pairs", "h0", "h2")) == ["h1", "h0"]


def test_a_peer_of_the_same_group_is_no_victim() -> None:
    """The group would lack it, and nothing would be gained. h1 is a sibling, and h0 is of use only
    with h1: so the other pair goes, though it is more important."""
    cluster = cluster_of({BRIDGED: singles(0, 0, 5, 5)})
    wanted = quad(2)
    wanted["metadata"] |= {"namespace": "team", "labels": {SOURCES[0].label: "g"}}
    assert set(uids(ask(cluster, wanted, "pairs", "h0", "h2")) or ()) == {"h0", "h1"}
    for namespace, victims in (("other", {"h0", "h1"}), ("team", {"h2", "h3"})):
        peer = cluster.pod(PodUid("h1"))
        assert peer is not None
        group = Group(namespace, f"{SOURCES[0].name}/g")
        cluster.put_pod(replace(peer, group_ref=GroupReference(group, gang=True)))
        assert set(uids(ask(cluster, wanted, "pairs", "h0", "h2")) or ()) == victims
        # Nor is it one that kube-scheduler has chosen, though its GPU would do.
        assert set(uids(ask(cluster, wanted, "pairs", "h0", "h1")) or ()) == victims


@pytest.mark.parametrize(
    ("first", "second", "expected", "violated"),
    [
        pytest.param(0, 2, {"h2", "h3"}, 0, id="another-pair"),
        pytest.param(1, 2, {"h2", "h3"}, 0, id="one-is-not-enough"),
        pytest.param(0, 0, {"h0", "h1"}, 2, id="every-pair-violates"),
        pytest.param(1, 0, {"h0", "h1"}, 1, id="the-least"),
        pytest.param(2, 0, {"h0", "h1"}, 0, id="allowed"),
    ],
)
def test_budgets_count_as_kube_scheduler_counts_them(
    first: int, second: int, expected: set[str], violated: int
) -> None:
    """h0 and h1 are in the first budget, h2 and h3, more important, in the second."""
    pods = {
        f"h{i}": Held((i,), priority, labels=(("app", app),))
        for i, (priority, app) in enumerate([(1, "a"), (1, "a"), (2, "b"), (2, "b")])
    }
    cluster = cluster_of({BRIDGED: pods})
    cluster.budgets = tuple(
        Budget("team", app, (Requirement("app", "In", (app,)),), allowed)
        for app, allowed in (("a", first), ("b", second))
    )
    found = ask(cluster, quad(2), "pairs", "h1", "h2")
    assert set(uids(found) or ()) == expected
    assert found is not None
    assert found.violations == violated


def test_nothing_is_replaced_as_long_as_budgets_are_unknown() -> None:
    cluster = cluster_of({DGX: singles(*[0] * 8)})
    cluster.budgets = None
    assert ask(cluster, quad(), "dgx", "h0", "h2", "h5", "h7") is None
    assert uids(ask(cluster, quad(), "dgx", "h0", "h1", "h2", "h3")) == ["h0", "h1", "h2", "h3"]


def test_terminating_pods_need_no_eviction() -> None:
    pods = singles(0, 0, 0, 0)
    pods["h0"] = replace(pods["h0"], terminating=True)
    cluster = cluster_of({BRIDGED: pods})
    assert uids(ask(cluster, quad(2), "pairs", "h0", "h2")) == ["h1"]


def test_as_much_cpu_comes_free_as_kube_schedulers_victims_would_free() -> None:
    small, large = (("cpu", 1000),), (("cpu", 8000),)
    pods = {f"h{i}": Held((i,), asks=small if i < 2 else large) for i in range(4)}
    pods["h3"] = replace(pods["h3"], priority=2)
    cluster = cluster_of({BRIDGED: pods})
    cpus = {"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "10"}}, "name": "main"}
    modest = {"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "2"}}, "name": "main"}
    wide = quad(2, containers=[cpus])
    assert set(uids(ask(cluster, wide, "pairs", "h0", "h2")) or ()) == {"h2", "h3"}
    narrow = quad(2, containers=[modest])
    assert set(uids(ask(cluster, narrow, "pairs", "h0", "h2")) or ()) == {"h0", "h1"}


def test_a_pod_that_shares_with_no_other_evicts_all_of_kube_schedulers_victims() -> None:
    cluster = cluster_of({BRIDGED: singles(0, 0, 0, 0)})
    apart = quad(2, affinity={"podAntiAffinity": {"requiredDuringScheduling": []}})
    found = uids(ask(cluster, apart, "pairs", "h0", "h2"))
    assert found is not None
    assert len(found) == 3
    assert {"h0", "h2"} <= set(found)


def test_a_pod_without_gpus_stays_a_victim() -> None:
    cluster = cluster_of({BRIDGED: singles(0, 0, 0, 0)})
    found = ask(cluster, quad(2), "pairs", "h1", "h2", "web", violations=1)
    assert found is not None
    assert len(uids(found) or ()) == 3
    assert "web" in (uids(found) or ())
    assert found.violations == 1


def test_a_node_that_kube_scheduler_has_promised_to_another_pod_is_left_alone() -> None:
    cluster = cluster_of({BRIDGED: singles(0, 0, 0, 0)})
    assert ask(cluster, quad(2), "pairs", "h1", "h2") is not None
    nominated = SchedulingAttributes(priority=2000, nominated=NodeName("pairs"))
    cluster.put_pod(waiting("first", gpu_request(2), nominated))
    assert ask(cluster, quad(2), "pairs", "h1", "h2") is None


def test_budgets_are_looked_at_once_for_each_pod_and_not_for_each_set() -> None:
    """8 pods have 255 sets: a client with many budgets could make every preemption slow."""
    app = (("app", "x"),)
    cluster = cluster_of({DGX: {f"h{i}": Held((i,), labels=app) for i in range(8)}})
    selector = (CountedRequirement("app", "In", ("x",)),)
    cluster.budgets = tuple(Budget("team", f"b{i}", selector, 0) for i in range(50))
    CountedRequirement.reads = 0
    assert len(uids(ask(cluster, quad(), "dgx", "h0", "h2", "h5", "h7")) or ()) == 4
    assert CountedRequirement.reads <= 50 * (8 + 1) + 2 * 50 * 8


def test_preempt_ends_in_time_among_thousands_of_sets() -> None:
    """Time passes with every question whether it is late: each is one set of victims, or less."""
    cluster = cluster_of({DGX: singles(*[0] * 8)})
    asked = 0

    def late() -> bool:
        nonlocal asked
        asked += 1
        return asked > 20

    chosen = {"Pods": [{"UID": f"h{i}"} for i in (0, 2, 5, 7)], "NumPDBViolations": 0}
    body = {"Pod": quad(), "NodeNameToMetaVictims": {"dgx": chosen}}
    args = msgspec.json.decode(msgspec.json.encode(body), type=PreemptionArgs)
    assert preempt(cluster, args, ending_when(late)).meta_victims == {}
    assert asked < 30


def test_report_that_names_no_uids() -> None:
    """Its pods may be evicted as those of others: only a claim outlives its pod."""
    cluster = cluster_of({BRIDGED: singles(0, 0)})
    report = cluster.node_info(BRIDGED.name).report
    assert report is not None
    without = tuple(replace(each, pod_uid=PodUid("")) for each in report.allocations)
    cluster.put_record(BRIDGED, replace(report, sequence=2, allocations=without))
    found = candidates(cluster.node_info(BRIDGED.name), "nvidia.com/gpu")
    assert {pod.name for pod in found} == {"h0", "h1"}
