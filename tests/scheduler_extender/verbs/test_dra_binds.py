"""bind under DRA: the pod's claim is the proof."""

import json
import threading
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.annotations import ClaimConstraints, claim_constraints
from scheduler_extender.clientlimits import BIND_ENDS_AFTER, BIND_STARTS_WITHIN
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.explain.placedpod import NO_CLAIM, placed_on
from scheduler_extender.framework.setrules.claims import HAD_CLAIM
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import Offer
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import BindError, Binding, BindUnknownError
from scheduler_extender.verbs.bindlimiter import BindLimiter
from scheduler_extender.wire import BindingArgs, MetaPod, MetaVictims, Pod, PreemptionArgs
from tests.nodes import bridged, pod, record_of
from tests.scheduler_extender.binding import Written
from topology.core.availability import Availability
from topology.core.devices import NodeName, PodUid
from topology.core.dra import Claimed, Published, claim_holder, served
from topology.core.placement import INIT_UNDER_DRA
from topology.core.report import Report
from topology.core.requests import NO_CONSTRAINTS, gpu_request

NODE = NodeName("node")
NVLINK = {"link": "nvlink"}


class World:
    """A node of two linked pairs, 0-1 and 2-3, whose GPUs are published as 0, 1, 2, 3."""

    def __init__(self) -> None:
        self.cluster, self.written = Cache(lambda: 0.0), Written()
        self.deadline = NO_DEADLINE
        self.limiter: BindLimiter | None = None
        self.cluster.put_node(NODE, NodeObject(exists=True, advertises_none=True))
        self.claims: dict[str, tuple[int, ...]] = {}
        self.holders: dict[str, str] = {}
        self.sequence = 0
        self.claim()

    def claim(self, **claims: tuple[int, ...]) -> None:
        """These pods' claims are allocated now, and those before."""
        self.claims |= claims
        self.sequence += 1
        published = [Published("pool", f"gpu-{i}", f"GPU-{i}") for i in range(4)]
        claimed = [
            Claimed(
                "pool", f"gpu-{gpu}", PodUid(uid), "default", self.holders.get(uid, uid), claim=uid
            )
            for uid, gpus in self.claims.items()
            for gpu in gpus
        ]
        bare = replace(bridged(name=NODE), resources=())
        report = Report("boot", self.sequence)
        self.cluster.put_record(*served(bare, report, "nvidia.com/gpu", published, claimed))

    def add(self, manifest: dict[str, Any]) -> None:
        self.cluster.put_pod(record_of(manifest))

    def bind(self, uid: str) -> dict[str, Any]:
        """Bind a pod; the annotation that was written."""
        known = self.cluster.pod(PodUid(uid))
        assert known is not None
        args = BindingArgs(known.name, known.namespace, uid, NODE)
        verbs.bind(self.cluster, self.written, args, lambda: "", self.deadline, self.limiter)
        return self.written.placement

    def filter(self, manifest: dict[str, Any]) -> str:
        """Why the node is refused; empty where it passes."""
        found = verbs.filter_nodes(self.cluster, msgspec.convert(manifest, Pod), [NODE])
        return {**(found.failed or {}), **(found.unresolvable or {})}.get(NODE, "")


@pytest.fixture
def world() -> World:
    return World()


def pair(uid: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return pod(2, NVLINK if annotations is None else annotations, name=uid, uid=uid)


def test_the_claims_own_devices_are_written(world: World) -> None:
    world.add(pair("a"))
    world.claim(other=(0,), a=(2, 3))
    found = world.bind("a")
    assert (found["verdict"], found["sets"]) == ("guaranteed", [[2, 3]])
    assert world.cluster.tallies.vetoes == 0


def test_a_promise_under_dra_counts_as_kept_once(world: World) -> None:
    """What its claim has was there before the pod was, so that no report is news of it."""
    for uid, gpus in (("a", (0, 1)), ("plain", (2,))):
        world.add(pair(uid, None if uid == "a" else {}))
        world.claim(**{uid: gpus})
        written = world.bind(uid)
        bound = pair(uid, None if uid == "a" else {})
        bound["spec"]["nodeName"] = NODE
        bound["metadata"]["annotations"]["gpu-topology.io/placement"] = json.dumps(written)
        world.add(bound)
        world.claim()
    assert (world.cluster.tallies.kept, world.cluster.tallies.read()[1]["guaranteed"]) == (1, 1)


def test_a_claim_with_other_devices_is_refused_and_counted(world: World) -> None:
    """As where another pod's devices were on their way when filter was asked."""
    world.add(pair("a"))
    world.claim(a=(1, 2))
    with pytest.raises(BindError, match="the pod's claim has the GPUs 1, 2: the next free GPUs do"):
        world.bind("a")
    assert world.written.bindings == []
    assert world.cluster.tallies.vetoes == 1


def test_nothing_is_written_while_a_device_of_its_claim_is_not_known(world: World) -> None:
    """As where a GPU has fallen out of its node, and was alone in its pool."""
    world.add(pair("a"))
    world.claim(a=(0,))
    with pytest.raises(BindError, match="claim has no devices yet, or the extender"):
        world.bind("a")


def test_a_pod_that_requires_nothing_needs_no_proof(world: World) -> None:
    world.add(pair("a", {}))
    world.bind("a")
    world.add(pair("b", {**NVLINK, "policy": "preferred"}))
    world.claim(b=(1, 2))
    assert world.bind("b")["sets"] == [[1, 2]]


def test_a_plain_pod_may_ask_for_what_is_not_followed(world: World) -> None:
    """kube-scheduler has found devices of another DeviceClass for it, and no Node counts them."""
    for name, asks in ("a", {}), ("b", NVLINK):
        manifest = pair(name, asks)
        limits = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
        manifest["spec"]["containers"][0]["resources"] = limits
        assert (world.filter(manifest) == "") == (asks == {})
        if not asks:
            world.add(manifest)
            world.bind(name)
    key = world.cluster.node_info(NODE).key("nvidia.com/mig-1g.5gb")
    world.cluster.put_record(bridged(name=NODE), Report("boot", 9))
    assert world.cluster.node_info(NODE).key("nvidia.com/mig-1g.5gb") != key, (
        "a plugin's node says no"
    )


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_others_whose_claims_are_not_known_do_not_matter(world: World, phase: str) -> None:
    """Theirs is on its way, or gone, and the watch on pods is late. The devices of a claim that is
    allocated are others."""
    world.add(pod(1, {}, name="early", uid="early", node=NODE, phase=phase))
    world.add(pair("a"))
    world.claim(a=(0, 1))
    assert world.bind("a")["verdict"] == "guaranteed"


def test_no_member_of_its_gang_comes_before_a_pod_that_has_its_claim(world: World) -> None:
    """A peer's single GPU would be the first of these two, were they free."""
    for name, gpus in ("a", 2), ("sibling", 1):
        member = pod(gpus, NVLINK if gpus == 2 else {}, name=name, uid=name)
        member["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "g"}
        world.add(member)
    world.claim(a=(0, 1))
    assert world.bind("a")["verdict"] == "guaranteed"


def test_a_gang_whose_pods_all_have_their_claims_is_bound_whole(world: World) -> None:
    """Its own claims have the GPUs, and no member is still to come to the domain."""
    for name in "a", "b":
        member = pair(name, {**NVLINK, "group-domain": "node", "group-size": "2"})
        member["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "g"}
        world.add(member)
    world.claim(a=(0, 1), b=(2, 3))
    assert [world.bind(name)["verdict"] for name in ("a", "b")] == ["guaranteed"] * 2


@pytest.mark.parametrize(
    ("nominated", "claimed"),
    [
        pytest.param(True, (), id="nominated"),
        pytest.param(True, (0, 1), id="and with a claim"),
        pytest.param(False, (0, 1), id="with a claim, and the nomination comes later"),
    ],
)
@pytest.mark.parametrize("asks", ["a", "b"])
def test_a_member_whose_devices_are_chosen_needs_no_others(
    world: World, asks: str, claimed: tuple[int, ...], *, nominated: bool
) -> None:
    """It is not still to come to the domain, and takes nothing that its siblings need; nor that it
    needs itself, where kube-scheduler asks about it again."""
    members = {}
    for name in "a", "b":
        member = pair(name, {**NVLINK, "group-domain": "node", "group-size": "2"})
        member["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "g"}
        if name == "a" and nominated:
            member["status"]["nominatedNodeName"] = NODE
        world.add(member)
        members[name] = member
    world.claim(**({"a": claimed} if claimed else {}))
    assert world.filter(members[asks]) == ""


def test_other_pods_change_nothing_for_the_group_of_a_nominated_pod(world: World) -> None:
    """The reservations of its other members are not computed again."""
    member = pair("a", {**NVLINK, "group": "g", "group-domain": "node", "group-size": "2"})
    member["status"]["nominatedNodeName"] = NODE
    world.add(member)
    before = world.cluster.snapshot().groups
    assert [status.group.name for status in before.waiting] == ["g"]
    world.add(pair("b", {}))
    world.bind("b")
    assert world.cluster.snapshot().groups.waits == before.waits


def test_a_single_member_whose_device_is_chosen_does_not_come_before_a_pair(world: World) -> None:
    for name, gpus in ("single", 1), ("wants", 2):
        member = pod(gpus, NVLINK if name == "wants" else {}, name=name, uid=name)
        member["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "g"}
        if name == "single":
            member["status"]["nominatedNodeName"] = NODE
        world.add(member)
    world.claim(single=(3,))
    assert world.filter(member) == ""


def test_a_bind_that_is_repeated_is_proven_again(world: World) -> None:
    world.add(pair("a"))
    world.claim(a=(0, 1))
    assert world.bind("a") == world.bind("a")


def test_a_claims_devices_on_an_ineligible_node_do_not_count_against_a_pod(world: World) -> None:
    """As where kube-scheduler has heard first that the node is open again."""
    world.cluster.put_node(NODE, NodeObject(advertises_none=True, cordoned=True))
    world.add(pair("a"))
    world.claim(a=(0, 1), b=(2, 3))
    assert world.filter(pair("a")) == ""
    assert world.filter(pair("c")) != ""


def test_what_a_bound_pod_has_is_known_at_once(world: World) -> None:
    world.add(pair("a"))
    world.claim(a=(0, 1))
    world.bind("a")
    assert world.filter(pair("b")) == ""
    world.claim(single=(2,))
    assert world.filter(pair("b")) != ""


@pytest.mark.parametrize("asks", [NVLINK, {}], ids=["required", "plain"])
def test_a_pod_that_had_a_claim_goes_to_no_node_with_a_plugin(
    world: World, asks: dict[str, str]
) -> None:
    """Refused at bind its claim is deleted, but its status names the claim for good."""
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}
    manifest = pod(2, asks, extendedResourceClaimStatus={"requestMappings": [mapping]})
    assert world.filter(manifest) == ""
    world.cluster.put_record(bridged(name=NODE), Report("boot", 9))
    world.cluster.put_node(NODE, NodeObject(exists=True))
    assert world.filter(manifest) == HAD_CLAIM.message
    victims: dict[str, MetaVictims | None] = {NODE: MetaVictims([MetaPod("cpus")], 0)}
    asked = PreemptionArgs(msgspec.convert(manifest, Pod), None, victims)
    assert verbs.preempt(world.cluster, asked).meta_victims == {}, "nobody is evicted for it"
    world.add(manifest)
    (waits,) = world.cluster.snapshot().pods
    (answer,) = answers_to(world.cluster.snapshot(), waits)
    assert (answer.decision.rejection, answer.score) == (HAD_CLAIM, None), "why says the same"
    assert world.filter(pod(2, asks)) != HAD_CLAIM.message


def test_a_claim_that_was_for_no_gpus_keeps_a_pod_off_no_plugin(world: World) -> None:
    """The next one takes its place, on whatever node a DRA driver serves that resource."""
    mapping = {"containerName": "main", "resourceName": "example.com/nic", "requestName": "r"}
    world.cluster.put_record(bridged(name=NODE), Report("boot", 9))
    world.cluster.put_node(NODE, NodeObject(exists=True))
    assert world.filter(pod(2, extendedResourceClaimStatus={"requestMappings": [mapping]})) == ""


def test_a_bound_pod_without_a_claim_says_what_to_do(world: World) -> None:
    bound = pair("a")
    bound["spec"]["nodeName"] = NODE
    world.add(bound)
    for claims, words in ({}, NO_CLAIM), ({"a": (2, 3)}, "it got GPUs 2,3"):
        world.claim(**claims)
        info, known = world.cluster.node_info(NODE), world.cluster.pod(PodUid("a"))
        assert known is not None
        assert placed_on(info, known, None).words[-1].startswith(words)


def test_gpus_of_init_containers_are_not_followed(world: World) -> None:
    manifest = pair("a")
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    manifest["spec"]["initContainers"] = [{"name": "warm-up", **limits}]
    assert world.filter(manifest) == INIT_UNDER_DRA.message


def test_the_pods_to_evict_are_known(world: World) -> None:
    """kube-scheduler's preemption frees no devices under DRA; the plan does."""
    for uid, gpus in (("one", (0,)), ("two", (2, 3))):
        world.add(pod(len(gpus), {}, name=uid, uid=uid, node=NODE))
        world.claim(**{uid: gpus})
    wanted = pair("a")
    wanted["spec"]["priority"] = 10
    world.add(wanted)
    world.cluster.budgets = ()
    assert world.filter(pair("a")) == "not enough free GPUs"
    found = eviction_advice(world.cluster, "default", "a")
    assert found is not None
    assert found.plan is not None, found.text
    assert [step.pod for step in found.plan.steps] == ["one"]


def test_a_pod_that_succeeded_holds_its_devices_as_long_as_its_claim(world: World) -> None:
    """kube-scheduler gives them to no other pod before that."""
    manifest = pod(1, {}, name="one", uid="one", node=NODE)
    world.add(manifest)
    world.claim(one=(0,))
    manifest["status"] = {"phase": "Succeeded"}
    world.add(manifest)
    offer = world.cluster.node_info(NODE).offer("nvidia.com/gpu")
    assert isinstance(offer, Offer)
    assert offer.availability.free == 0b1110
    del world.claims["one"]
    world.claim()
    offer = world.cluster.node_info(NODE).offer("nvidia.com/gpu")
    assert isinstance(offer, Offer)
    assert offer.availability.free == 0b1111


def test_a_pod_that_is_deleted_holds_its_devices_as_long_as_its_claim(world: World) -> None:
    world.add(pod(1, {}, name="one", uid="one", node=NODE))
    world.claim(one=(0,))
    world.cluster.drop_pod(PodUid("one"), 9)
    world.claim()
    before = world.cluster.node_info(NODE).offer("nvidia.com/gpu")
    assert isinstance(before, Offer)
    assert before.availability.devices_left == 3
    del world.claims["one"]
    world.claim()
    after = world.cluster.node_info(NODE).offer("nvidia.com/gpu")
    assert isinstance(after, Offer)
    assert after.availability == Availability(0b1111)


# Pods with claims of their own: they ask for 0 devices, so that kube-scheduler asks about them.


def with_claim(annotations: dict[str, str], claim: str = "mine") -> dict[str, Any]:
    manifest = pod(None, annotations, name="a", uid="a")
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 0}}
    manifest["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": claim}]
    return manifest


def found(manifest: dict[str, Any]) -> PodRecord:
    """As the API server is asked about such a pod."""
    claims = claim_constraints(msgspec.convert(manifest, Pod))
    wanted = claims.constraints if isinstance(claims, ClaimConstraints) else NO_CONSTRAINTS
    return PodRecord(PodUid("a"), "default", "a", None, gpu_request(0, wanted))


def test_the_devices_of_a_pods_own_claim_are_held_against_its_constraints(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = found(with_claim(NVLINK))
    monkeypatch.setattr(world.written, "find", lambda *_: record)
    args = BindingArgs("a", "default", "a", NODE)
    with pytest.raises(BindError, match="claim has no devices yet"):
        verbs.bind(world.cluster, world.written, args, lambda: "")
    world.claim(a=(1, 2))
    with pytest.raises(BindError, match="the pod's claim has the GPUs 1, 2"):
        verbs.bind(world.cluster, world.written, args, lambda: "")
    world.claim(a=(2, 3))
    verbs.bind(world.cluster, world.written, args, lambda: "")
    assert world.written.placement["sets"] == [[2, 3]]


def test_a_claim_that_is_bound_to_the_wrong_devices_is_freed_by_a_refusal(world: World) -> None:
    manifest = with_claim(NVLINK)
    assert world.filter(manifest) == "", "nothing is allocated"
    world.holders["mine"] = claim_holder("mine")
    world.claim(mine=(1, 2))
    assert world.filter(manifest) == "the next free GPUs do not meet link=nvlink"
    assert world.filter(with_claim(NVLINK, "another")) == ""
    assert world.filter(with_claim({})) == "", "it requires nothing"
    world.claim(mine=(2, 3))
    assert world.filter(manifest) == ""
    assert "unknown key" in world.filter(with_claim({"lnik": "nvlink"}))


@pytest.mark.parametrize("asks", [NVLINK, {}], ids=["required", "plain"])
def test_a_claim_on_a_node_that_has_just_moved_waits_for_the_nodes_record(
    world: World, asks: dict[str, str]
) -> None:
    """The agent still tells of the device plugin, and kube-scheduler has allocated a claim. If the
    node has not moved, its kubelet would never start the pod."""
    world.cluster.put_record(bridged(name=NODE), Report("boot", 9))
    world.cluster.put_node(NODE, NodeObject(exists=True))
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}
    manifest = pod(2, asks, extendedResourceClaimStatus={"requestMappings": [mapping]})
    manifest["metadata"]["uid"] = "moved"
    world.add(manifest)
    with pytest.raises(BindError, match="whose record shows no claims yet"):
        world.bind("moved")


class Unanswered(Written):
    """A write has no answer; the watch shows it later, or never."""

    def __init__(self, world: World, *, written: bool) -> None:
        super().__init__()
        self.world, self.commits = world, written

    def write(self, binding: Binding) -> None:
        super().write(binding)
        if self.commits:
            news = pair(binding.uid)
            news["spec"]["nodeName"] = binding.node
            threading.Timer(0.01, lambda: self.world.add(news)).start()
        raise BindUnknownError("no answer")


def test_a_bind_without_an_answer_is_no_error_once_the_watch_shows_it(world: World) -> None:
    """An error would make kube-scheduler delete the claim of a pod that is bound."""
    world.add(pair("a"))
    world.claim(a=(2, 3))
    world.written = Unanswered(world, written=True)
    world.limiter = BindLimiter(world.cluster)
    assert world.bind("a")["sets"] == [[2, 3]]


def test_a_bind_that_no_watch_shows_is_an_error_before_the_scheduler_gives_up(
    world: World,
) -> None:
    world.add(pair("a"))
    world.claim(a=(2, 3))
    world.written = Unanswered(world, written=False)
    looks = count()
    world.limiter = BindLimiter(world.cluster)
    world.deadline = Deadline(lambda: float(next(looks)), BIND_STARTS_WITHIN)
    with pytest.raises(BindError, match="no answer"):
        world.bind("a")
    assert next(looks) >= BIND_STARTS_WITHIN + BIND_ENDS_AFTER
