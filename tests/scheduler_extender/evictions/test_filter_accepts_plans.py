"""What ``unblock`` says is played: the pods are evicted, and filter takes the pod on that node."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import MANAGED
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.evictions import EvictionAdvice, EvictionPlan, eviction_advice
from scheduler_extender.state.pods.attributes import SchedulingAttributes
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.verbs import preempt
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs
from tests.nodes import pod
from tests.scheduler_extender.verbs.racks import Scheduler, member
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.core.requests import GpuRequest
from topology.machines import machine

LABEL = {"scheduling.x-k8s.io/pod-group": "g"}
GPUS = 4


class Trays(Scheduler):
    """Racks of trays on which pods of low priority run, one on each of some GPUs."""

    def __init__(self, racks: dict[str, int], held: Mapping[str, Iterable[int]]) -> None:
        super().__init__(racks)
        self.cluster.budgets = ()
        self.held = {name: set(held.get(name, ())) for name in self.names}
        for name, gpus in self.held.items():
            for p in gpus:
                self.run(name, p)
            self.report(name)

    def run(self, name: str, p: int) -> None:
        """A pod of low priority that its Job would make anew runs on a GPU of a node."""
        found = pod(1, name=f"{name}-{p}", uid=f"{name}-{p}", node=name, phase="Running")
        attributes = SchedulingAttributes(priority=-1, controller="Job")
        self.cluster.put_pod(replace(record(found), admitted=True, attributes=attributes))

    def report(self, name: str) -> None:
        """The node's agent reports who holds what."""
        node = machine("gb200-tray").topology(name, group=name.rpartition("-")[0])
        held = tuple(
            Allocation(
                PodUid(f"{name}-{p}"), "default", f"{name}-{p}", "main", "nvidia.com/gpu",
                (DeviceId(node.gpus[p].uuid),),
            )
            for p in sorted(self.held[name])
        )  # fmt: skip
        self.cluster.put_record(node, Report("boot", 1, allocations=held))

    def evict(self, uids: Iterable[str]) -> None:
        """Evict pods, and let the agents report it."""
        for uid in uids:
            name, _, p = uid.rpartition("-")
            self.cluster.drop_pod(PodUid(uid))
            self.held[name].remove(int(p))
            self.report(name)

    def carry_out(self, plan: EvictionPlan) -> None:
        """Evict the pods of a plan; each comes up again where the plan says that it goes."""
        self.evict([step.uid for step in plan.steps])
        for step in plan.steps:
            if step.relocation is not None:
                free = min(set(range(GPUS)) - self.held[step.relocation])
                self.held[step.relocation].add(free)
                self.run(step.relocation, free)
                self.report(step.relocation)

    def unblock(self, manifest: dict[str, Any]) -> EvictionAdvice:
        """What unblock says of a waiting pod of priority 0."""
        self.cluster.put_pod(record(manifest))
        found = eviction_advice(self.cluster, "default", manifest["metadata"]["name"])
        assert found is not None
        return found


def record(manifest: dict[str, Any]) -> PodRecord:
    found = pod_record(msgspec.convert(manifest, Pod), MANAGED)
    assert found is not None
    return found


def gang(name: str, size: int, gpus: int = GPUS, domain: str = "nvlink-domain") -> dict[str, Any]:
    return member(name, "", size, gpus, {"group-domain": domain}, LABEL)


def test_a_node_that_takes_the_pod_is_one_to_which_filter_sends_the_gang() -> None:
    """Both racks hold the gang; filter sends it to the one that is left with less."""
    trays = Trays({"a": 3, "b": 2}, {})
    asked = gang("m0", 2)
    assert trays.passing(asked) == ["b-00", "b-01"]
    assert trays.unblock(asked).takes == "b-00"


def test_no_pod_is_evicted_outside_of_the_domain_that_was_chosen() -> None:
    """A sibling was sent to rack b just now, and since then a pod has come there. An eviction in
    rack a, whose name comes first, would help nobody: filter sends the gang to rack b."""
    trays = Trays({"a": 2, "b": 2}, {"a-00": [0]})
    assert trays.passing(gang("m0", 2)) == ["b-00", "b-01"]
    trays.held["b-01"].add(3)
    trays.run("b-01", 3)
    trays.report("b-01")
    found = trays.unblock(gang("m1", 2))
    assert found.plan is not None
    assert found.plan.node == "b-01"
    trays.evict(step.uid for step in found.plan.steps)
    assert "b-01" in trays.passing(gang("m1", 2))


def test_kube_scheduler_evicts_no_pod_there_either() -> None:
    trays = Trays({"a": 2, "b": 2}, {"a-00": [0], "b-01": [3]})
    trays.evict(["b-01-3"])
    assert trays.passing(gang("m0", 2)) == ["b-00", "b-01"]
    offered: dict[str, MetaVictims | None] = {"a-00": MetaVictims([MetaPod("a-00-0")], 0)}
    args = PreemptionArgs(msgspec.convert(gang("m1", 2), Pod), meta_victims=offered)
    assert preempt(trays.cluster, args).meta_victims == {}


@pytest.mark.parametrize("seed", range(60))
def test_filter_passes_the_node_of_every_plan(seed: int) -> None:
    rng = random.Random(seed)
    racks = {name: rng.randint(1, 3) for name in ("a", "b", "c")}
    names = [f"{name}-{i:02}" for name, count in racks.items() for i in range(count)]
    crowded = rng.choice((0.1, 0.3, 0.6))
    held = {n: [p for p in range(GPUS) if rng.random() < crowded] for n in names}
    trays = Trays(racks, held)
    gpus, size = rng.choice((1, 2, 4)), rng.randint(2, 4)
    domain = rng.choice(("nvlink-domain", "nvlink-domain", "node"))
    bound_alone = rng.random() < 0.3
    annotations = {"group-domain": domain}
    pods = [
        member(
            f"m{i}",
            "g" if bound_alone else "",
            size,
            gpus,
            annotations,
            {} if bound_alone else LABEL,
        )
        for i in range(size)
    ]
    for each in pods:
        if rng.random() < 0.5:
            trays.filter(each, rng.sample(names, rng.randint(1, len(names))))
        if bound_alone and rng.random() < 0.3:
            trays.place(each)
    waiting = next((each for each in pods if trays.node_of(each) is None), None)
    if waiting is None:
        return
    found = trays.unblock(waiting)
    if found.takes is not None:
        assert found.takes in trays.passing(waiting)
    elif found.plan is not None:
        trays.carry_out(found.plan)
        assert found.plan.node in trays.passing(waiting)


def test_no_victim_goes_where_another_member_of_the_gang_has_to_go() -> None:
    """The whole rack is for the gang, so its pods are lost."""
    trays = Trays({"r": 2}, {"r-00": range(GPUS)})
    found = trays.unblock(gang("m0", 2))
    assert found.plan is not None
    assert [step.relocation for step in found.plan.steps] == [None] * GPUS
    trays.carry_out(found.plan)
    assert trays.passing(gang("m0", 2)) == ["r-00", "r-01"]


def test_the_plays_have_plans_and_relocations() -> None:
    """Else the test above would be about nothing."""
    outcomes = set()
    for held in ({"a-00": [0], "a-01": [1]}, {}):
        found = Trays({"a": 2}, held).unblock(gang("m0", 2, gpus=2))
        outcomes.add((found.takes is not None, found.plan is not None))
    assert (True, False) in outcomes


def test_explain_names_the_domain_to_which_filter_sends_the_gang() -> None:
    trays = Trays({"a": 2, "b": 2}, {"a-00": [0]})
    assert trays.passing(gang("m0", 2)) == ["b-00", "b-01"]
    trays.evict(["a-00-0"])
    asked = record(gang("m1", 2))
    assert isinstance(asked.request, GpuRequest)
    rows = answers_to(trays.cluster.snapshot(), asked)
    assert [row.node for row in rows if row.passes] == trays.passing(gang("m1", 2))
