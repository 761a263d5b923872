"""Plans for pods with claims of their own, and plans that evict such pods, on a node with DRA."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_extender.evictions import search
from scheduler_extender.explain.evictions import EvictionAdvice, eviction_advice
from scheduler_extender.explain.gpustates import Use, node_state
from scheduler_extender.explain.waitingreasons import WaitingReasons
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.kube.waiting import WaitingPods
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.pods.reservation import value_of
from scheduler_extender.verbs import filter_nodes
from scheduler_extender.wire import pod_decoder
from tests.dranodes import (
    DRIVER,
    NODE,
    DraWorld,
    a_slice,
    asking,
    claim,
    device,
    device_class,
    exactly,
    raw,
)
from tests.nodes import pod
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from tests.scheduler_extender.kube.test_waker import Api
from topology.core.devices import PodUid
from topology.core.requests import gpu_request
from topology.kubeapi.apiserver import ApiUnreachable
from topology.machines import machine

PAIR = f"{DRIVER}/pair"
WANTS = PodUid("wants")
Json = dict[str, Any]


@dataclass(frozen=True)
class Holder:
    """A claim with these GPUs. ``pods`` share it; of none it is a claim that was not freed."""

    name: str
    gpus: tuple[int, ...]
    pods: tuple[str, ...]
    by_number: bool = False  # the pod asks for a number, and kube-scheduler has made the claim
    named: bool = False  # the pod names it, also where no other does


@dataclass
class Scene:
    """A node of two pairs, 0-1 and 2-3, with pods on it; one more pod waits."""

    holders: Sequence[Holder]
    request: Json
    alike: str = ""
    priorities: dict[str, int] = field(default_factory=dict)
    order: Sequence[int] = (0, 1, 2, 3)
    controller: str = ""

    def world(self, gone: Collection[str] = ()) -> DraWorld:
        """The picture once these pods are gone, and kube-controller-manager has taken them out of
        their claims."""
        world = DraWorld()
        world.cluster.budgets = ()
        world.classes.apply(device_class())
        world.slices.apply(a_slice(*map(device, self.order)))
        sink = PodSink(world.cluster)
        for each in self.holders:
            left = tuple(name for name in each.pods if name not in gone)
            if left or not each.pods:
                world.claims.apply(claim(each.name, *each.gpus, pods=left))
            for name in left:
                sink.apply(raw(self.pod(name, each)))
        world.claims.apply(asking("c", self.request, alike=self.alike))
        sink.apply(raw(self.waiting))
        return world

    def pod(self, name: str, holder: Holder) -> Json:
        found = pod(len(holder.gpus) if holder.by_number else 0, name=name, uid=name, node=NODE)
        found["metadata"]["namespace"] = "ns"
        found["spec"]["priority"] = self.priorities.get(name, 0)
        by_name = {"name": "g", "resourceClaimName": holder.name}
        made = not holder.named and len(holder.pods) == 1
        if not holder.by_number:
            of_template = {"name": "g", "resourceClaimTemplateName": "t"}
            found["spec"]["resourceClaims"] = [of_template if made else by_name]
        if self.controller:
            found["metadata"]["ownerReferences"] = [{"kind": self.controller, "controller": True}]
        found["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        if made and not holder.by_number:
            found["status"]["resourceClaimStatuses"] = [by_name]
        return found

    @property
    def waiting(self) -> Json:
        found = pod(0, {"link": "nvlink"}, name=WANTS, uid=WANTS)
        found["metadata"]["namespace"] = "ns"
        found["spec"] |= {
            "priority": 5,
            "resourceClaims": [{"name": "g", "resourceClaimName": "c"}],
        }
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        found["status"] = {"phase": "Pending", "conditions": [condition]}
        return found

    def fits(self, gone: Collection[str]) -> bool:
        """Whether its claim surely gets what it requires once these pods are gone."""
        snapshot = self.world(gone).cluster.snapshot()
        results = evaluate(snapshot, Question(snapshot.waiting[WANTS], Purpose.FILTER), [NODE])
        return NODE in results.devices and NODE in results.passed


def evictions(world: DraWorld) -> EvictionAdvice:
    found = eviction_advice(world.cluster, "ns", WANTS)
    assert found is not None
    return found


def victims(found: EvictionAdvice) -> list[str]:
    assert found.plan is not None, found.text
    return sorted(step.pod for step in found.plan.steps)


def subsets(names: Collection[str]) -> Iterable[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    held = draw(st.lists(st.sampled_from((0, 1, 2, 3)), max_size=4, unique=True))
    holders = []
    while held:
        gpus = tuple(held.pop() for _ in range(draw(st.integers(1, min(2, len(held))))))
        name = f"h{min(gpus)}"
        by_number = draw(st.booleans())
        sharers = 1 if by_number else draw(st.integers(0, 2))
        pods = tuple(f"{name}-{number}" for number in range(sharers))
        holders.append(Holder(name, gpus, pods, by_number))
    pair, alike = draw(
        st.sampled_from(
            (
                ("", ""),
                ("", PAIR),
                (f'device.attributes["{DRIVER}"].pair == "pair-0"', ""),
                (f'device.attributes["{DRIVER}"].number != 1', ""),
            )
        )
    )
    names = [name for each in holders for name in each.pods]
    priorities = {name: draw(st.sampled_from((0, 1, 9))) for name in names}
    order = draw(st.permutations((0, 1, 2, 3)))
    request = exactly(draw(st.integers(1, 2)), pair)
    return Scene(holders, request, alike, priorities, order)


@given(scenes())
def test_after_a_plan_the_claims_get_what_the_pod_requires_and_no_plan_is_missed(
    scene: Scene,
) -> None:
    """The prediction on node infos holds on the API server's objects afterwards."""
    found = evictions(scene.world())
    able = [name for name, priority in scene.priorities.items() if priority < 5]
    if found.takes is not None:
        assert scene.fits(())
    elif found.plan is not None:
        gone = victims(found)
        assert {*gone} <= {*able}
        assert scene.fits(gone)
        smaller = (some for some in subsets(able) if len(some) < len(gone))
        assert not any(map(scene.fits, smaller)), "fewer would have done"
    else:
        assert not any(map(scene.fits, subsets(able)))


HALVES = (Holder("a", (0,), ("a",)), Holder("b", (2,), ("b",), by_number=True))
JUST_A_PAIR = (exactly(2), PAIR)


def test_a_pod_with_a_claim_is_evicted_for_a_pod_with_a_claim() -> None:
    scene = Scene(HALVES, *JUST_A_PAIR, priorities={"b": 9}, controller="Job")
    found = evictions(scene.world())
    assert victims(found) == ["a"]
    assert found.plan is not None
    assert (found.plan.cost.lost, found.plan.cost.devices) == (1, 1)
    assert "which GPUs the new claims get is unknown" in found.text[1]


def test_a_shared_claim_is_free_once_all_its_pods_are_gone() -> None:
    both = (Holder("a", (0,), ("a1", "a2")), Holder("b", (2,), ("b",)))
    scene = Scene(both, *JUST_A_PAIR, priorities={"b": 9})
    assert victims(evictions(scene.world())) == ["a1", "a2"]
    scene.priorities["a2"] = 9
    assert evictions(scene.world()).plan is None


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("annotation", [{}, {"min-gpu-memory": "1Gi"}])
def test_a_pod_whose_successor_has_its_claim_at_once_is_not_evicted(
    annotation: Json, number: int
) -> None:
    """While the claim has devices whoever names it gets on its node. A pod that requires something
    filter would hold off until they are free. It may ask for a number, too."""
    scene = Scene(
        (Holder("a", (0,), ("a",), named=True), Holder("b", (2,), ("b",), by_number=True)),
        *JUST_A_PAIR,
        priorities={"b": 9},
        controller="Job",
    )
    world = scene.world()
    held = scene.pod("a", scene.holders[0])
    if number:
        world.claims.apply(claim("number", 1, pod="a"))
        held["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = number
    held["metadata"]["annotations"] = {f"gpu-topology.io/{k}": v for k, v in annotation.items()}
    PodSink(world.cluster).apply(raw(held))
    assert (evictions(world).plan is not None) is bool(annotation)


def test_no_node_is_called_unfit_where_it_is_unknown_what_a_claim_gets() -> None:
    found = evictions(Scene(HALVES, exactly(2, 'device.driver.substring(1) == "x"')).world())
    assert found.plan is None
    assert (
        "which GPUs the pod's claims get is unknown: the function substring is not" in found.text[0]
    )


def test_no_eviction_frees_a_claim_without_a_pod() -> None:
    scene = Scene((Holder("a", (0,), ()), Holder("b", (2,), ())), *JUST_A_PAIR)
    found = evictions(scene.world())
    assert found.plan is None
    assert "no node gets a guaranteed placement" in found.text[0]


def test_a_pod_that_asks_for_a_number_moves() -> None:
    """Within its node: beside the devices that the claim gets one is left."""
    found = evictions(Scene(HALVES, *JUST_A_PAIR, controller="ReplicaSet").world())
    assert found.plan is not None
    assert [(step.pod, step.relocation) for step in found.plan.steps] == [("b", NODE)]
    assert found.plan.cost.lost == 0


def test_a_pod_for_a_number_evicts_those_with_claims_too() -> None:
    world = Scene((Holder("a", (0, 1, 2), ("a1", "a2")),), exactly(1)).world()
    wants = pod(2, {"link": "nvlink"}, name="number", uid="number")
    wants["metadata"]["namespace"], wants["spec"]["priority"] = "ns", 5
    PodSink(world.cluster).apply(raw(wants))
    found = eviction_advice(world.cluster, "ns", "number")
    assert found is not None
    assert victims(found) == ["a1", "a2"]


def test_a_pod_with_a_number_and_a_claim_lets_go_of_all_and_is_lost() -> None:
    """Its number alone says too little: not how many GPUs come free, nor where it has a place."""
    world = Scene((Holder("a", (0, 1, 2), ("a",)),), exactly(1), controller="Job").world()
    world.claims.apply(claim("number", 3, pod="a"))
    both = pod(1, name="a", uid="a", node=NODE)
    job = {"kind": "Job", "controller": True}
    both["metadata"] |= {"namespace": "ns", "ownerReferences": [job]}
    of_template = {"name": "g", "resourceClaimTemplateName": "t"}
    both["spec"] |= {"priority": 4, "resourceClaims": [of_template]}
    both["status"]["resourceClaimStatuses"] = [{"name": "g", "resourceClaimName": "a"}]
    wants = pod(3, name="number", uid="number")
    wants["metadata"]["namespace"], wants["spec"]["priority"] = "ns", 5
    for each in both, wants:
        PodSink(world.cluster).apply(raw(each))
    found = eviction_advice(world.cluster, "ns", "number")
    assert found is not None
    assert victims(found) == ["a"]
    assert found.plan is not None
    assert (found.plan.cost.lost, found.plan.cost.devices) == (1, 4)


def test_devices_that_are_no_gpus_come_free_with_the_victims() -> None:
    """The pod that waits needs a network card, too, and a victim has the only one."""
    nic = device(9, "nic")
    both = {"deviceClassName": "nics", "allocationMode": "ExactCount", "count": 1}
    scene = Scene(HALVES, *JUST_A_PAIR, priorities={"b": 9})
    world = scene.world()
    is_nic = f"device.attributes['{DRIVER}'].type == 'nic'"
    spec = {"selectors": [{"cel": {"expression": is_nic}}]}
    world.classes.apply(raw({"metadata": {"name": "nics"}, "spec": spec}))
    world.slices.apply(a_slice(*map(device, scene.order), nic, generation=2))
    held = [("gpu-0", "r"), ("nic-9", "n")]
    results = [{"request": r, "driver": DRIVER, "pool": NODE, "device": d} for d, r in held]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "a", "uid": "a"}],
    }
    named = {"namespace": "ns", "name": "a", "uid": "a"}
    world.claims.apply(raw({"metadata": named, "status": status}))
    world.claims.apply(asking("c", exactly(2), {"name": "n", "exactly": both}))
    assert victims(evictions(world)) == ["a"]


# While a place is reserved.


@pytest.fixture
def kept() -> DraWorld:
    """A place is reserved, and pod a is to be evicted for it."""
    scene = Scene(HALVES, *JUST_A_PAIR, priorities={"b": 9})
    world = scene.world()
    value = value_of(WANTS, NODE, world.cluster.today() + 600, [PodUid("a")])
    annotated = scene.waiting
    annotated["metadata"]["annotations"]["gpu-topology.io/reserved"] = value
    PodSink(world.cluster).apply(raw(annotated))
    return world


def test_a_reservation_holds_until_the_pod_comes(kept: DraWorld) -> None:
    found = evictions(kept).reservation
    assert found is not None
    assert (found.problem, [each.pod for each in found.to_evict]) == ("", ["a"])
    thief = pod(1, name="thief", uid="thief")
    answered = filter_nodes(kept.cluster, pod_decoder.decode(raw(thief)), [NODE])
    assert "reserved for another pod" in (answered.unresolvable or {})[NODE]
    kept.cluster.drop_pod(PodUid("a"))
    kept.claims.apply(claim("a"))
    wanted = Scene(HALVES, *JUST_A_PAIR).waiting
    assert filter_nodes(kept.cluster, pod_decoder.decode(raw(wanted)), [NODE]).node_names == [NODE]


def test_a_reservation_that_another_pod_has_taken_is_lost(kept: DraWorld) -> None:
    kept.claims.apply(claim("thief", 1, pod="thief"))
    found = evictions(kept).reservation
    assert found is not None
    assert found.problem == f"{NODE} has no guaranteed placement for the pod"


# Counted, and told.


def test_a_waiting_pod_is_counted_and_reported() -> None:
    world = Scene(HALVES, exactly(2)).world()
    assert WaitingReasons(world.cluster).count()["scattered"] == 1
    woken: list[tuple[str, str]] = []
    events = WaitingPods(world.cluster, lambda pod, text: woken.append((pod.name, text)))
    events.round(0.0)
    ((name, text),) = woken
    assert name == WANTS
    assert "no node takes it: the next free GPUs do not meet link=nvlink (1 node)" in text


def test_a_pod_with_gpus_by_claims_is_named_on_the_node_and_does_not_end() -> None:
    """Also a claim that pods share, or that is not freed."""
    more = (Holder("s", (1,), ("s1", "s2")), Holder("o", (3,), ()))
    world = Scene((*HALVES, *more), exactly(2)).world()
    gpus = node_state(world.cluster.node_info(NODE)).gpus
    holders = [(each.name, each.use) for gpu in gpus for each in gpu.holders]
    names = ["a", "claim/s", "b", "claim/o"]
    assert holders == [(f"ns/{name}", Use.IN_USE) for name in names]


def test_a_pod_with_unknown_devices_counts_as_one_that_some_node_takes() -> None:
    world = Scene(HALVES, exactly(2, 'device.driver.substring(1) == "x"')).world()
    assert WaitingReasons(world.cluster).count()["none"] == 1


def test_a_pod_whose_annotations_cannot_be_read_is_counted_so() -> None:
    scene = Scene(HALVES, exactly(2))
    world = scene.world()
    wrong = scene.waiting
    wrong["metadata"]["annotations"]["gpu-topology.io/group"] = "g"
    PodSink(world.cluster).apply(raw(wrong))
    assert WaitingReasons(world.cluster).count()["malformed"] == 1


def test_a_pod_is_woken_once_its_claims_would_get_what_it_requires() -> None:
    world = Scene((Holder("a", (0, 1, 2), ("a",)),), *JUST_A_PAIR).world()
    api = Api()
    waker = Waker(world.cluster, api, clock=lambda: 0.0)
    world.claims.apply(claim("a", 0, 2, pod="a"))
    waker.round(1.0)
    assert api.woken == [], "no pair is free"
    world.claims.apply(claim("a", 2, pod="a"))
    waker.round(2.0)
    assert api.woken == [WANTS]
    waker.round(20.0)
    assert api.woken == [WANTS], "nothing has changed since"


def test_no_pod_is_woken_for_an_ineligible_node() -> None:
    world = Scene((Holder("a", (0, 1, 2), ("a",)),), *JUST_A_PAIR).world()
    api = Api()
    waker = Waker(world.cluster, api, clock=lambda: 0.0)
    open_to_all = world.cluster.node_info(NODE).node_object
    world.cluster.put_node(NODE, replace(open_to_all, cordoned=True))
    world.claims.apply(claim("a", 2, pod="a"))
    waker.round(1.0)
    assert api.woken == []
    world.cluster.put_node(NODE, open_to_all)
    waker.round(2.0)
    assert api.woken == [WANTS]


@pytest.mark.parametrize("kind", ["claims", "slices", "classes"])
def test_a_pod_is_woken_for_devices_that_are_no_gpus(kind: str) -> None:
    """A GPU has to be beside the network card that comes: its first one is no more to be had."""
    cards = [
        {"name": f"nic-{n}", "attributes": {"n": {"int": n}, PAIR: {"string": f"pair-{n}"}}}
        for n in range(2)
    ]

    def published(*cards: Json) -> Json:
        of_pool = {"name": "nics", "generation": 3 - len(cards), "resourceSliceCount": 1}
        spec = {"driver": "nics.example.com", "nodeName": NODE, "pool": of_pool, "devices": cards}
        return {"metadata": {"name": "n"}, "spec": spec}

    def nics(expression: str) -> Json:
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        return {"metadata": {"name": "nics"}, "spec": spec}

    given = {"request": "r", "driver": "nics.example.com", "pool": "nics", "device": "nic-0"}
    status = {"allocation": {"devices": {"results": [given]}}}
    news = {
        "claims": {"metadata": {"namespace": "ns", "name": "other"}, "status": status},
        "slices": published(cards[1]),
        "classes": nics("device.attributes['nics.example.com'].n == 1"),
    }
    world = Scene((), exactly(1), order=(3, 1, 0, 2)).world()
    world.classes.apply(raw(nics("device.driver == 'nics.example.com'")))
    world.slices.apply(raw(published(*cards)))
    card = {"deviceClassName": "nics", "allocationMode": "ExactCount", "count": 1}
    requests = [exactly(1), {**exactly(1), "name": "beside"}, {"name": "n", "exactly": card}]
    devices = {
        "requests": requests,
        "constraints": [{"requests": ["beside", "n"], "matchAttribute": PAIR}],
    }
    waits = {"metadata": {"namespace": "ns", "name": "c"}, "spec": {"devices": devices}}
    world.claims.apply(raw(waits))
    waker = Waker(world.cluster, api := Api(), clock=lambda: 0.0)
    waker.round(1.0)
    assert api.woken == []
    getattr(world, kind).apply(raw(news[kind]))
    waker.round(2.0)
    assert api.woken == [WANTS]


@pytest.mark.parametrize("looks", range(12))
def test_a_round_whose_time_ends_midway_loses_no_wake(looks: int) -> None:
    """However far it came."""
    world = Scene((Holder("a", (0, 1, 2), ("a",)),), *JUST_A_PAIR).world()
    api, times = Api(), chain([0.0] * looks, repeat(9.0))
    waker = Waker(world.cluster, api, clock=lambda: next(times))
    world.claims.apply(claim("a", 2, pod="a"))
    for second in 1.0, 20.0:
        waker.round(second)
    assert WANTS in api.woken


def test_a_wake_that_could_not_be_written_is_written_later() -> None:
    world = Scene((Holder("a", (0, 1, 2), ("a",)),), *JUST_A_PAIR).world()
    api = Api()
    waker = Waker(world.cluster, api, clock=lambda: 0.0)
    world.claims.apply(claim("a", 2, pod="a"))
    api.fails = ApiUnreachable("timed out")
    waker.round(1.0)
    api.fails = None
    waker.round(20.0)
    assert api.woken == [WANTS]


@pytest.mark.parametrize("fast", ["wants", "second", "third"])
def test_pods_about_which_the_api_server_is_slow_hold_up_no_other(fast: str) -> None:
    scene = Scene((Holder("a", (0, 1, 2), ("a",)),), *JUST_A_PAIR)
    world, api, names = scene.world(), Api(), {"wants", "second", "third"}
    for name in names - {WANTS}:
        waits = scene.waiting
        waits["metadata"] |= {"name": name, "uid": name}
        PodSink(world.cluster).apply(raw(waits))
    waker = Waker(world.cluster, api, clock=lambda: 0.0)
    world.claims.apply(claim("a", 2, pod="a"))
    api.slow = names - {fast}
    for second in 1.0, 5.0, 9.0:
        waker.round(second)
    assert fast in api.woken


def test_a_pod_whose_status_names_a_former_claim_is_sent_to_no_plugin() -> None:
    """No kubelet would start it there: no pod is evicted for it, and it reads so."""
    node = machine("a100-pcie-4-bridged").topology("plugin")
    for by_claim in (False, True):
        cluster = cluster_of({node: {"a": Held((0,)), "b": Held((2,))}})
        waits = replace(
            waiting("wants", gpu_request(2, NVLINKED)), has_extended_resource_claim=by_claim
        )
        cluster.put_pod(waits)
        assert (search(cluster.snapshot(), waits).plan is None) is by_claim
        counted = WaitingReasons(cluster).count()
        assert counted["kubelet" if by_claim else "scattered"] == 1
