"""The plan is the cheapest there is, and what it says of each pod is so."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.evictions import Advice, Cost, search
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import SchedulingAttributes, amounts_of
from scheduler_extender.state.pods.budgets import Budget
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.selecting import Requirement
from tests.deadlines import ending_when
from tests.scheduler_extender.evictions.bruteforce import cheapest
from tests.scheduler_extender.evictions.scenes import (
    NVLINKED,
    CountedRequirement,
    Held,
    cluster_of,
    singles,
    waiting,
)
from topology.core import placement
from topology.core.requests import NO_CONSTRAINTS, gpu_request
from topology.machines import machine

DGX = machine("dgx1-v100").topology("dgx")
PAIRS = machine("a100-pcie-4-bridged").topology("pairs")
OTHER = machine("a100-pcie-4-bridged").topology("other")
PCIE = machine("l40s-4").topology("pcie")


def pair(priority: int = 0) -> PodRecord:
    """A pod that waits for a linked pair."""
    return waiting("wants", gpu_request(2, NVLINKED), SchedulingAttributes(priority))


def plan_for(cluster: Cache, pod: PodRecord) -> Advice:
    """What the search finds."""
    assert cluster.budgets is not None
    return search(cluster.snapshot(), pod)


def steps(found: Advice) -> dict[str, str | None]:
    """The pods that the plan evicts, and where each goes."""
    assert found.plan is not None, found.reason
    return {step.pod.name: step.relocation for step in found.plan.steps}


def test_a_pod_moves_within_its_node_where_only_the_link_is_missing() -> None:
    """Two of four GPUs are free, one of each pair: kube-scheduler would evict no pod."""
    found = plan_for(cluster_of({PAIRS: {"a": Held((0,)), "b": Held((2,))}}), pair())
    assert found.plan is not None
    assert found.plan.cost == Cost(0, 1, 0, 1)
    assert set(steps(found).values()) == {"pairs"}
    assert found.whole


def test_a_node_about_which_deciding_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def assess(kubelet: Any, *rest: Any) -> Any:
        if kubelet.shape.size == 8:
            raise OverflowError("a fault of ours")
        return placement.assess(kubelet, *rest)

    monkeypatch.setattr("scheduler_extender.framework.rules.devices.assess", assess)
    held = {PAIRS: {"a": Held((0,)), "b": Held((2,))}, DGX: {"c": Held((0, 1, 2, 3, 4, 5, 6))}}
    assert set(steps(plan_for(cluster_of(held), pair())).values()) == {"pairs"}


def test_a_pod_moves_to_another_node() -> None:
    cluster = cluster_of({PAIRS: singles(0, 0, 0, 0), PCIE: singles(0, 0)})
    found = plan_for(cluster, pair())
    assert len(steps(found)) == 2
    assert set(steps(found).values()) == {"pcie"}


def test_a_pod_without_a_controller_is_lost_and_only_at_a_lower_priority() -> None:
    pods = {"a": Held((0,), controller=""), "b": Held((2,), controller="")}
    cluster = cluster_of({PAIRS: pods, PCIE: {}})
    assert plan_for(cluster, pair()).plan is None
    found = plan_for(cluster, pair(priority=1))
    assert found.plan is not None
    assert found.plan.cost == Cost(1, 0, 0, 1)
    (step,) = found.plan.steps
    assert step.relocation is None
    assert "no controller" in step.why


def test_a_pod_that_cannot_be_relocated_is_lost() -> None:
    cluster = cluster_of({PAIRS: singles(1, 1, 0, 0)})
    found = plan_for(cluster, pair(priority=5))
    assert steps(found) == {"h2": None, "h3": None}
    assert found.plan is not None
    assert all("no node" in step.why for step in found.plan.steps)
    assert plan_for(cluster, pair(priority=0)).plan is None


def test_more_moves_are_cheaper_than_one_loss() -> None:
    pods = {"ab": Held((0, 1), controller=""), "c": Held((2,)), "d": Held((3,))}
    cluster = cluster_of({PAIRS: pods, PCIE: singles(0, 0)})
    assert steps(plan_for(cluster, pair(priority=5))) == {"c": "pcie", "d": "pcie"}


def test_no_pod_of_a_higher_priority_moves() -> None:
    cluster = cluster_of({PAIRS: {"a": Held((0,), 7), "b": Held((2,), 7)}})
    assert plan_for(cluster, pair(priority=6)).plan is None
    assert plan_for(cluster, pair(priority=7)).plan is not None


def test_no_pod_is_evicted_against_a_budget() -> None:
    labels = (("app", "web"),)
    cluster = cluster_of({PAIRS: {"a": Held((0,), labels=labels), "b": Held((2,), 3)}})
    ours = pair(priority=3)
    assert steps(plan_for(cluster, ours)) == {"a": "pairs"}
    cluster.budgets = (Budget("team", "web", (Requirement("app", "In", ("web",)),), 0),)
    assert steps(plan_for(cluster, ours)) == {"b": "pairs"}


def test_a_promised_pod_moves_only_to_where_it_is_promised_the_same() -> None:
    held = {"p": Held((0, 1), constraints=NVLINKED), "q": Held((2, 3), constraints=NVLINKED)}
    assert plan_for(cluster_of({PAIRS: held, PCIE: {}}), pair()).plan is None
    # With a node that has such a place nobody has to go anywhere: ours takes it.
    assert plan_for(cluster_of({PAIRS: held, OTHER: {}}), pair()).takes == "other"


def test_terminating_pods_are_waited_for() -> None:
    cluster = cluster_of(
        {
            PAIRS: {
                "a": Held((0,), terminating=True),
                "b": Held((1,), terminating=True),
                "c": Held((2, 3)),
            }
        }
    )
    found = plan_for(cluster, pair())
    assert found.plan is not None
    assert found.plan.steps == ()
    assert {pod.name for pod in found.plan.terminating} == {"a", "b"}


def test_hardware_that_never_can_is_reported() -> None:
    found = plan_for(cluster_of({PCIE: singles(0, 0, 0, 0)}), pair(priority=9))
    assert found.plan is None
    assert "ever" in found.reason


def test_a_search_that_is_out_of_time_says_so() -> None:
    cluster = cluster_of({PAIRS: {"a": Held((0,)), "b": Held((2,))}})
    assert not search(cluster.snapshot(), pair(), ending_when(lambda: True)).whole


def scenes() -> Iterator[tuple[int, Cache, PodRecord]]:
    """Small clusters, drawn at random."""
    for seed in range(120):
        rng = random.Random(seed)
        nodes = {}
        for number in range(rng.randint(1, 3)):
            kind = rng.choice(("a100-pcie-4-bridged", "a30-4-bridged", "l40s-4"))
            node = machine(kind).topology(f"n{number}")
            free = list(range(len(node.gpus)))
            pods: dict[str, Held] = {}
            rng.shuffle(free)
            while free and rng.random() < 0.8:
                size = min(len(free), rng.choice((1, 1, 1, 2)))
                gpus, free = tuple(free[:size]), free[size:]
                linked = size == 2 and rng.random() < 0.3
                pods[f"p{number}-{len(pods)}"] = Held(
                    gpus,
                    rng.choice((0, 0, 1, 2)),
                    rng.choice(("ReplicaSet", "Job", "Job", "DaemonSet", "")),
                    NVLINKED if linked else NO_CONSTRAINTS,
                    (("app", rng.choice("xyz")),),
                    started=rng.choice((None, 5.0, 9.0)),
                    terminating=rng.random() < 0.1,
                )
            nodes[node] = pods
        cluster = cluster_of(nodes)
        if rng.random() < 0.4:
            cluster.budgets = (
                Budget("team", "x", (Requirement("app", "In", ("x",)),), rng.randint(0, 1)),
            )
        wanted = gpu_request(rng.choice((1, 2, 2, 2, 4)), rng.choice((NVLINKED, NO_CONSTRAINTS)))
        yield seed, cluster, waiting("wants", wanted, SchedulingAttributes(rng.choice((0, 1, 3))))


def test_the_cheapest_equals_brute_force() -> None:
    planned = 0
    for seed, cluster, pod in scenes():
        found = plan_for(cluster, pod)
        assert cluster.budgets is not None
        least = cheapest(cluster.snapshot().nodes, pod, cluster.budgets, cluster.settings)
        ours = Cost() if found.takes is not None else found.plan and found.plan.cost
        assert ours == least, seed
        planned += bool(found.plan and found.plan.steps)
    assert planned >= 20


def test_the_cheapest_equals_brute_force_where_cpus_are_short() -> None:
    planned = short = 0
    for seed, cluster, pod in scenes():
        roomy = plan_for(cluster, pod)
        rng = random.Random(seed)
        for info in cluster.snapshot().nodes:
            cpus = {"cpu": str(rng.choice((8, 16, 24))), "pods": "110"}
            cluster.put_node(info.name, NodeObject(allocatable=amounts_of(cpus)))
            for each in info.pods.bound.alive.values():
                asks = (("cpu", rng.choice((0, 4000, 8000))),)
                cluster.put_pod(replace(each, attributes=replace(each.attributes, requests=asks)))
        pod = replace(pod, attributes=replace(pod.attributes, requests=(("cpu", 8000),)))
        cluster.others = lambda _: ()  # all pods have GPUs
        found = search(cluster.snapshot(), pod)
        least = cheapest(cluster.snapshot().nodes, pod, cluster.budgets or (), cluster.settings)
        ours = Cost() if found.takes is not None else found.plan and found.plan.cost
        assert ours == least, seed
        planned += bool(found.plan and found.plan.steps)
        short += (found.takes, found.plan and found.plan.cost) != (
            roomy.takes,
            roomy.plan and roomy.plan.cost,
        )
    assert planned >= 20
    assert short >= 10


@pytest.mark.parametrize("priority", [0, 1])
def test_a_plan_says_in_words_what_becomes_of_each_pod(priority: int) -> None:
    pods = {"a": Held((0,)), "b": Held((2,), controller="" if priority else "Job")}
    cluster = cluster_of({PAIRS: pods})
    pod = pair(priority)
    lines = plan_for(cluster, pod).lines(pod)
    assert lines[0] == "evict 1 pod on pairs: then team/wants has a guaranteed placement there"
    assert "team/a (priority 0, 1 GPU) moves: its ReplicaSet recreates it" in "\n".join(lines)


def test_the_search_ends_in_time_among_thousands_of_budgets() -> None:
    """Each of 20 nodes has 8 pods that are in 50 budgets: that alone are 8,000 looks and more."""
    nodes = {
        machine("dgx1-v100").topology(f"dgx-{n}"): {
            f"{n}-{i}": Held((i,), n, labels=(("app", "x"),)) for i in range(8)
        }
        for n in range(20)
    }
    cluster = cluster_of(nodes)
    selector = (CountedRequirement("app", "In", ("x",)),)
    cluster.budgets = tuple(Budget("team", f"b{i}", selector, 1) for i in range(50))
    CountedRequirement.reads = 0
    found = search(
        cluster.snapshot(),
        pair(1000),
        ending_when(lambda: CountedRequirement.reads > 1_000),
    )
    assert not found.whole
    assert CountedRequirement.reads < 1_500
