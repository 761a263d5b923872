"""Pods with claims of their own at filter, prioritize and bind."""

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.annotations import MANAGED, ClaimConstraints, claim_constraints
from scheduler_extender.deadline import Deadline
from scheduler_extender.explain.placedpod import placed_on
from scheduler_extender.framework.awaited import GPU_NOT_PUBLISHED
from scheduler_extender.framework.setrules.assumed import ASSUMED
from scheduler_extender.kube.draobjects import Claim
from scheduler_extender.state.pods.record import PodRecord, requesting_record
from scheduler_extender.verbs import BindError, Binding
from scheduler_extender.verbs.assume import assume
from scheduler_extender.wire import BindingArgs, MetaPod, MetaVictims, Pod, PreemptionArgs
from tests.dranodes import (
    DRIVER,
    IS_GPU,
    NODE,
    DraWorld,
    Json,
    a_slice,
    asking,
    claim,
    device,
    device_class,
    exactly,
    raw,
    slice_of,
    two_pairs,
)
from tests.nodes import pod, record_of
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.requests import gpu_request

OTHER = NodeName("other")
NVLINK = {"link": "nvlink"}
REFUSED = "the next free GPUs do not meet link=nvlink"
NIC: Json = {"driver": "nics.example.com", "pool": "fabric"}


# Nobody says which devices come.
@pytest.fixture
def world() -> DraWorld:
    return two_pairs()


def of_claim(annotations: dict[str, str], *claims: str, uid: str = "a") -> Pod:
    """A pod in namespace ``ns``; the first of its claims is made from a template."""
    manifest: dict[str, Any] = pod(None, annotations, name=uid, uid=uid)
    manifest["metadata"]["namespace"] = "ns"
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 0}}
    first, *others = claims
    manifest["spec"]["resourceClaims"] = [
        {"name": "g0", "resourceClaimTemplateName": "t"},
        *({"name": name, "resourceClaimName": name} for name in others),
    ]
    made = [{"name": "g0", "resourceClaimName": first}]
    manifest["status"] = {"resourceClaimStatuses": made}
    return msgspec.convert(manifest, Pod)


def refusal(world: DraWorld, wanted: Pod) -> str:
    answered = verbs.filter_nodes(world.cluster, wanted, [NODE])
    assert not answered.unresolvable, "nobody would free a claim that has devices"
    return (answered.failed or {}).get(NODE, answered.error)


def scored(world: DraWorld, wanted: Pod) -> int:
    return verbs.prioritize(world.cluster, wanted, [NODE])[0].score


def test_a_node_passes_where_the_devices_that_come_will_do(world: DraWorld) -> None:
    world.claims.apply(asking("c", exactly(2)))
    assert refusal(world, of_claim(NVLINK, "c")) == REFUSED
    world.claims.apply(claim("other", 3, pod="p"))
    assert refusal(world, of_claim(NVLINK, "c")) == ""


def test_what_is_chosen_for_a_nominated_pod_does_not_come(world: DraWorld) -> None:
    world.claims.apply(asking("c", exactly(2)))
    nominated = msgspec.convert(pod(1, name="n", uid="n", nominatedNodeName=NODE), Pod)
    world.cluster.put_pod(record_of(nominated))
    assert refusal(world, of_claim(NVLINK, "c")) == ""


def test_a_node_passes_where_the_devices_are_unknown(world: DraWorld) -> None:
    assert refusal(world, of_claim(NVLINK, "unseen")) == ""
    assert scored(world, of_claim(NVLINK, "unseen")) == 0


@pytest.mark.parametrize("key", ["group", "group-size", "group-domain"])
def test_a_group_that_no_rule_would_hold_together_is_rejected(world: DraWorld, key: str) -> None:
    world.claims.apply(asking("c", exactly(1)))
    for more in ({}, NVLINK):
        answered = verbs.filter_nodes(world.cluster, of_claim({key: "4", **more}, "c"), [NODE])
        (why,) = (answered.unresolvable or {}).values()
        message = "a pod with its own ResourceClaims cannot be in a group"
        assert why == f"annotation gpu-topology.io/{key}: {message}"


@pytest.mark.parametrize(
    ("held", "annotations", "helps"),
    [
        (0, NVLINK, True),  # 3 and 2 come
        (2, NVLINK, False),  # 3 and 1
        (2, {}, True),
        (0, {"group": "g"}, False),
    ],
)
def test_no_pod_is_evicted_for_cpus_where_the_devices_that_come_will_not_do(
    world: DraWorld, held: int, annotations: dict[str, str], helps: bool
) -> None:
    """kube-scheduler's dry run knows no links, and asks filter about no node that lacks CPUs."""
    world.claims.apply(asking("c", exactly(2)))
    world.claims.apply(claim("other", held, 1 - held // 2, pod="other"))
    victims: dict[str, MetaVictims | None] = {NODE: MetaVictims([MetaPod("cpus")], 0)}
    answered = verbs.preempt(
        world.cluster, PreemptionArgs(of_claim(annotations, "c"), None, victims)
    )
    assert answered.meta_victims == (victims if helps else {})


def test_several_claims_are_judged_together(world: DraWorld) -> None:
    """One has its device already, the other will get the next one."""
    world.claims.apply(claim("one", 2))
    world.claims.apply(asking("two", exactly(1)))
    assert refusal(world, of_claim(NVLINK, "one", "two")) == ""
    world.claims.apply(claim("one", 0))
    assert refusal(world, of_claim(NVLINK, "one", "two")) == REFUSED


def test_the_pod_goes_where_it_costs_least(world: DraWorld) -> None:
    world.speak(1, OTHER)
    world.slices.apply(slice_of(OTHER, *map(device, (3, 1, 0, 2)), name="o", pool=OTHER))
    world.claims.apply(claim("half a pair", 2, pod="p"))
    world.claims.apply(asking("c", exactly(1)))
    wanted = of_claim({"min-gpu-memory": "1Gi"}, "c")
    costs = {
        each.host: each.score for each in verbs.prioritize(world.cluster, wanted, [NODE, OTHER])
    }
    assert costs[NODE] > costs[OTHER], "the other node would lose a pair"


def test_a_pod_with_more_claims_than_any_sane_one_is_refused_before_the_work(
    world: DraWorld,
) -> None:
    wanted = of_claim(NVLINK, *(f"c{number}" for number in range(33)))
    answered = verbs.filter_nodes(world.cluster, wanted, [NODE])
    reason = "spec.resourceClaims: 33 entries; at most 32 are allowed in a pod with GPUs"
    assert answered.unresolvable == {NODE: reason}


def test_a_node_for_which_there_is_no_time_is_reached_by_a_later_try(world: DraWorld) -> None:
    world.claims.apply(asking("c", exactly(2, IS_GPU)))
    wanted = of_claim({"min-gpu-memory": "1Gi"}, "c")
    names = [*(f"gone-{i}" for i in range(2000)), NODE]
    tries: list[list[str] | None] = []
    for start in range(0, 2000, 250):
        looks = count(start)  # a millisecond for each look at the clock
        late = Deadline(lambda looks=looks: next(looks) / 1000, start / 1000 + 1)  # type: ignore[misc]
        tries.append(verbs.filter_nodes(world.cluster, wanted, names, late).node_names)
    assert not tries[0]
    assert [NODE] in tries


def test_no_node_passes_undecided_where_the_time_is_up(world: DraWorld) -> None:
    world.claims.apply(asking("c", exactly(2)))
    late = Deadline(lambda: 2.0, 1.0)
    answered = verbs.filter_nodes(world.cluster, of_claim(NVLINK, "c"), [NODE], late)
    assert answered.node_names == []
    assert "still evaluating" in answered.error


@dataclass
class Bindings:
    """Finds the pods that were given, and keeps what is written."""

    pods: dict[str, Pod]
    written: list[Binding] = field(default_factory=list)

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        wanted = claim_constraints(self.pods[name])
        assert isinstance(wanted, ClaimConstraints)
        request = gpu_request(0, wanted.constraints)
        return PodRecord(uid, namespace, name, None, request, claims=wanted.names)

    def write(self, binding: Binding) -> None:
        self.written.append(binding)


def test_a_gpu_outside_the_class_that_pods_name_is_held_against_them_too(world: DraWorld) -> None:
    """NVIDIA's class has all GPUs, and the one that bears the resource's name has not."""
    of_nvidia = {"selectors": [{"cel": {"expression": IS_GPU}}]}
    world.classes.apply(raw({"metadata": {"name": DRIVER}, "spec": of_nvidia}))
    first = f"{IS_GPU} && device.attributes['{DRIVER}'].number < 3"
    world.classes.apply(device_class("mine", first, made="2"))
    wanted = of_claim(NVLINK, "c")
    world.claims.apply(asking("c", exactly(2)))
    assert refusal(world, wanted) == "", "nobody can say it: GPU 3 comes first"
    with pytest.raises(BindError, match="claim has no devices yet"):
        bind(world, wanted)
    world.claims.apply(claim("c", 1, 3, pod="a"))
    with pytest.raises(BindError, match="link=nvlink"):
        bind(world, wanted)
    world.claims.apply(claim("c", 0, 1, pod="a"))
    bind(world, wanted)
    part = device(1, "mig", name="mig-3")
    part["attributes"] |= {"uuid": {"string": "MIG-1"}}
    world.slices.apply(a_slice(*map(device, (0, 1, 2)), part, generation=2))
    assert world.problem == ""


def test_a_device_that_was_tainted_since_is_still_the_claims(world: DraWorld) -> None:
    """Else the next one would be judged in its place."""
    wanted = of_claim(NVLINK, "c")
    world.claims.apply(claim("c", 1, 3, pod="a"))
    sick = [{"effect": "NoSchedule"}]
    world.slices.apply(a_slice(*map(device, (1, 0, 2)), device(3, taints=sick), generation=2))
    assert refusal(world, wanted) == REFUSED
    with pytest.raises(BindError, match="link=nvlink"):
        bind(world, wanted)
    world.claims.apply(claim("c", 2, 3, pod="a"))
    assert refusal(world, wanted) == ""
    bind(world, wanted)


def bind(world: DraWorld, wanted: Pod) -> None:
    record = requesting_record(wanted, MANAGED)
    assert record is not None
    world.cluster.put_pod(record)
    verbs.bind(world.cluster, Bindings({}), BindingArgs("a", "ns", "a", NODE), lambda: "")


@pytest.mark.parametrize("own", [(), (2,)], ids=["nothing else", "one of its own"])
def test_what_containers_see_by_admin_access_is_judged(
    world: DraWorld, own: tuple[int, ...]
) -> None:
    """Others may have these GPUs, and keep them."""
    wanted = of_claim(NVLINK, "own", "monitor")
    world.claims.apply(claim("other", 0, 1, 3, pod="b"))
    world.claims.apply(claim("own", *(own or (0,)), pod="a", **({} if own else NIC)))
    world.claims.apply(claim("monitor", 1, 3, pod="a", adminAccess=True))
    assert "link=nvlink" in refusal(world, wanted)
    with pytest.raises(BindError, match="link=nvlink"):
        bind(world, wanted)
    pair = (3,) if own else (0, 1)
    world.claims.apply(claim("monitor", *pair, pod="a", adminAccess=True))
    assert refusal(world, wanted) == ""
    bind(world, wanted)
    held = world.cluster.node_info(NODE).claimed(PodUid("a"))
    assert held == tuple(DeviceId(f"GPU-{gpu}") for gpu in own)


def test_a_node_other_than_that_of_its_bind_is_refused(world: DraWorld) -> None:
    world.speak(1, OTHER)
    world.slices.apply(slice_of(OTHER, *map(device, (3, 1, 0, 2)), name="o", pool=OTHER))
    world.claims.apply(claim("c", 2, 3, pod="a"))
    wanted = of_claim(NVLINK, "c")
    record = requesting_record(wanted, MANAGED)
    assert record is not None
    world.cluster.put_pod(record)
    assert assume(world.cluster, record, NODE, lambda: "") is not None
    answered = verbs.filter_nodes(world.cluster, wanted, [NODE, OTHER])
    assert (answered.node_names, answered.unresolvable) == ([NODE], {OTHER: ASSUMED.message})
    with pytest.raises(BindError, match="has not finished"):
        assume(world.cluster, record, OTHER, lambda: "")


def test_a_waiting_bind_notices_the_names_of_claims(world: DraWorld) -> None:
    world.claims.apply(claim("c", 2, 3, pod="a"))
    record = requesting_record(of_claim(NVLINK, "c"), MANAGED)
    assert record is not None
    late = replace(record, claims=("",))
    world.cluster.put_pod(late)
    with pytest.raises(BindError, match="claim has no devices yet"):
        assume(world.cluster, late, NODE, lambda: "")
    world.cluster.put_pod(record)
    assert assume(world.cluster, late, NODE, lambda: "") is not None


def test_a_claim_that_is_known_before_its_node_is_put_together_counts(world: DraWorld) -> None:
    world.claims.apply(claim("one", 1, pod="a"))
    late = msgspec.json.decode(claim("two", 2, pod="a"), type=Claim)
    world.nodes._tracker.change([], [late])
    with pytest.raises(BindError, match="link=nvlink"):
        bind(world, of_claim(NVLINK, "one", "two"))


def test_a_claim_that_another_pod_has_is_the_pods_too(world: DraWorld) -> None:
    """Its GPUs are known, and judged; it was said that no GPUs come."""
    wanted = of_claim(NVLINK, "shared")
    for gpus, why in ((3, 1), REFUSED), ((3, 2), ""):
        world.claims.apply(claim("other", 0, pod="b"))
        world.claims.apply(claim("shared", *gpus, pod="b"))
        assert refusal(world, wanted) == why


def by_number(annotations: dict[str, str], uid: str = "a", **fields: Any) -> Pod:
    """A pod that asks for two GPUs."""
    manifest = pod(2, annotations, name=uid, uid=uid, **fields)
    manifest["metadata"]["namespace"] = "ns"
    return msgspec.convert(manifest, Pod)


def test_a_gpu_that_is_published_no_more_is_still_the_claims(world: DraWorld) -> None:
    """Else the pod would be judged on the others, or on the next one in its place."""
    world.claims.apply(claim("c", 3, 1, pod="a"))
    world.slices.apply(a_slice(*map(device, (3, 2, 0)), generation=2))
    own = of_claim(NVLINK, "c")
    for wanted in own, by_number(NVLINK):
        with pytest.raises(BindError, match="no longer in any ResourceSlice"):
            bind(world, wanted)
    assert refusal(world, own) == GPU_NOT_PUBLISHED.message
    bind(world, by_number({}))


def test_a_running_pod_lacks_no_gpu_that_is_published_no_more(world: DraWorld) -> None:
    """It was waited for, and the next free GPU counted as its own."""
    record = requesting_record(by_number(NVLINK, "b", node=NODE, phase="Running"), MANAGED)
    assert record is not None
    world.cluster.put_pod(record)
    world.claims.apply(claim("c", 3, 1, pod="b"))
    world.slices.apply(a_slice(*map(device, (3, 2, 0)), generation=2))
    assert world.offer.availability.devices_left == 2
    assert world.offer.availability.free == 0b0101
    info = world.cluster.node_info(NODE)
    assert not info.unacknowledged("nvidia.com/gpu")
    placed = placed_on(info, record, None)
    assert (placed.got, placed.keeps) == ([3], None), "what else it has nobody knows"


@pytest.mark.parametrize("last", ["own", "number"])
def test_a_number_and_claims_of_its_own_are_judged_together(world: DraWorld, last: str) -> None:
    manifest = pod(1, NVLINK, name="a", uid="a")
    manifest["metadata"]["namespace"] = "ns"
    manifest["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimName": "own"}]
    both = {"own": claim("own", 1, pod="a"), "number": claim("number", 3, pod="a")}
    late = both.pop(last)
    for news in both.values():
        world.claims.apply(news)
    with pytest.raises(BindError, match="claim has no devices yet"):
        bind(world, msgspec.convert(manifest, Pod))
    world.claims.apply(late)
    with pytest.raises(BindError, match="the pod's claim has the GPUs"):
        bind(world, msgspec.convert(manifest, Pod))
    world.claims.apply(claim(last, 0 if last == "number" else 2, pod="a"))
    bind(world, msgspec.convert(manifest, Pod))


def test_pods_that_share_a_claim_are_all_bound_on_its_devices(world: DraWorld) -> None:
    both = {name: of_claim(NVLINK, "shared", uid=name) for name in ("a", "b")}
    world.claims.apply(claim("shared", 0, 1, pods=("a", "b")))
    bindings = Bindings(both)
    for name, wanted in both.items():
        assert refusal(world, wanted) == ""
        verbs.bind(world.cluster, bindings, BindingArgs(name, "ns", name, NODE), lambda: "")
    assert ['"sets":[[0,1]]' in each.placement.replace(" ", "") for each in bindings.written] == [
        True,
        True,
    ]
