"""All askers of "may this pod go to this node?" give one answer where they once differed.

A situation is a cluster and a pod that waits there. The right answer stands beside it, once. Each
asker gets a cluster of its own and has to give this answer: the verbs, the waker, ``why``,
``check``, the pod's Event, the metric, and what tries evictions and ends.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import MANAGED
from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.explain.explanation import Explanation, explanation_of
from scheduler_extender.explain.groupfit import judge
from scheduler_extender.explain.idle import idle_pods, what_ends_would_do
from scheduler_extender.explain.waitingreasons import WaitingReasons
from scheduler_extender.files.podfile import read_all
from scheduler_extender.kube.waiting import WaitingPods
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.answers.decision import Refusals
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord, requesting_record
from scheduler_extender.verbs import preempt, prioritize
from scheduler_extender.verbs.filtering import filtered
from scheduler_extender.web.pages import Pages
from scheduler_extender.wire import BindingArgs, Pod, PreemptionArgs
from tests.dranodes import NODE as DRA_NODE
from tests.dranodes import asking, claim, device, exactly, raw, slice_of, two_pairs
from tests.nodes import pcie, pod, record_of, switched
from tests.scheduler_extender.binding import Written, bind_error
from tests.scheduler_extender.evictions.scenes import Held, cluster_of
from tests.scheduler_extender.framework.test_claims import of_claim
from tests.scheduler_extender.kube.test_waker import Api
from tests.scheduler_extender.verbs.racks import RACK, Scheduler, member
from tests.scheduler_extender.verbs.test_refusals import SURE, UNASKED, pinned, under
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason
from topology.core.report import IdleAllocation, Report
from topology.machines import machine

NAME = "asks"
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
GANG = {"scheduling.x-k8s.io/pod-group": "gang"}
NVLINK = {"link": "nvlink"}
PAIRS = machine("a100-pcie-4-bridged").topology("pairs")
OTHER = machine("a100-pcie-4-bridged").topology("other")
CPU_ONLY = NodeObject(exists=True, advertises_none=True)
IDLE_SINCE, OBSERVED = "2026-01-01T09:30:00Z", "2026-01-01T12:07:00Z"


@dataclass
class Scene:
    """A cluster, and a pod that begins to wait there."""

    cluster: Cache
    manifest: dict[str, Any]  # the pod
    offered: list[str]  # by kube-scheduler
    flies_to: str = ""  # the node to which a bind of the pod is in flight
    then: Callable[[], None] = lambda: None  # what comes after that

    @property
    def pod(self) -> Pod:
        """The pod as kube-scheduler sends it."""
        return msgspec.convert(self.manifest, Pod)

    @property
    def record(self) -> PodRecord:
        """The pod as kube-scheduler has called it unschedulable."""
        found = requesting_record(self.pod, MANAGED)
        assert found is not None
        return replace(found, called_unschedulable=True)

    @property
    def of_a_file(self) -> bool:
        """Whether the pod is no other if it does not exist yet: kube-scheduler has not begun with
        it, nor with its claims."""
        status = self.pod.status
        claims = status.resource_claim_statuses or status.extended_resource_claim_status
        return not (self.flies_to or claims or status.nominated_node_name)

    def begin(self) -> Cache:
        """The pod waits."""
        self.cluster.budgets = ()
        self.cluster.put_pod(self.record)
        if self.flies_to:
            assert self.cluster.assume(NodeName(self.flies_to), self.record)
        self.then()
        return self.cluster


@dataclass(frozen=True)
class Right:
    """The right answer; what is left out follows from ``nodes``."""

    nodes: Mapping[str, Reason | None]  # why each offered one refuses the pod; None: it takes it
    scores: Mapping[str, int] = field(default_factory=dict)  # of those that take it; or all 10
    resolvable: Collection[str] = frozenset()  # those whose refusal evictions may turn
    main: Reason | None = None  # for which most nodes refuse it
    binds: Collection[str] | None = None  # where bind is done; or on all that take it
    evicts: Collection[str] = frozenset()  # the nodes on which preempt names victims
    ends: Collection[str] = frozenset()  # the pods any of whose ends would help
    unblocks: str | None = None  # the node on which unblock sees a place, or makes one
    flies: bool = False  # a bind is in flight: the pod does not wait
    on: str = ""  # the node that counts it already, for which people get no score

    def told(self) -> dict[str, Any]:
        """What each asker has to say."""
        takes = {name for name, why in self.nodes.items() if why is None}
        scores = self.scores or dict.fromkeys(takes, 10)
        waits = "none" if self.main is None else self.main.value
        return {
            "filter": self.nodes,
            "filter: resolvable": {*self.resolvable},
            "prioritize": scores,
            "bind": takes if self.binds is None else {*self.binds},
            "preempt": {*self.evicts},
            "waker": bool(takes) and not self.flies,
            "why": self.nodes,
            "why: resolvable": {*self.resolvable},
            "why: scores": {name: score for name, score in scores.items() if name != self.on},
            "why: ends": {*self.ends},
            "metric": "" if self.flies else waits,
            "Event": self.main is not None and not self.flies,
            "idle": set() if self.flies else {*self.ends},
            "unblock": self.unblocks,
        }


def answers_of(build: Callable[[], Scene]) -> dict[str, Any]:
    """What all askers say of a pod."""
    found = _filter(build())
    passed = [name for name, why in found["filter"].items() if why is None]
    return {
        **found,
        "prioritize": _prioritize(build(), passed),
        "bind": {name for name in build().offered if _bind(build(), name) == ""},
        "preempt": _preempt(build(), found["filter: resolvable"]),
        "waker": _wakes(build()),
        **_why(build()),
        "metric": _metric(build()),
        "Event": _event(build()),
        "idle": _idle(build()),
        "unblock": _unblocks(build()),
    }


def _filter(scene: Scene) -> dict[str, Any]:
    found = filtered(scene.begin().snapshot(), scene.pod, scene.offered)
    refused = {name: why for why, names in found.rejected.items() for name in names}
    return {
        "filter": dict.fromkeys(found.passed) | {name: why.reason for name, why in refused.items()},
        "filter: resolvable": {name for name, why in refused.items() if why.resolvable},
    }


def _prioritize(scene: Scene, passed: list[str]) -> dict[str, int]:
    return {row.host: row.score for row in prioritize(scene.begin(), scene.pod, passed)}


def _bind(scene: Scene, name: str) -> str:
    """The error; empty where it is done."""
    meta = scene.pod.metadata
    args = BindingArgs(meta.name, meta.namespace, meta.uid, name)
    return bind_error(scene.begin(), Written(), args)


def _preempt(scene: Scene, resolvable: set[str]) -> set[str]:
    """As kube-scheduler asks where a refusal is resolvable: with all pods of lower priority."""
    snapshot, priority = scene.begin().snapshot(), scene.record.attributes.priority
    victims = {
        name: [{"UID": uid} for uid, each in held.items() if each.attributes.priority < priority]
        for name in resolvable
        for held in [snapshot.node_info(NodeName(name)).pods.bound.alive]
    }
    asked = {
        "Pod": scene.manifest,
        "NodeNameToMetaVictims": {
            name: {"Pods": pods, "NumPDBViolations": 0} for name, pods in victims.items() if pods
        },
    }
    return {*preempt(scene.cluster, msgspec.convert(asked, PreemptionArgs)).meta_victims}


def _wakes(scene: Scene) -> bool:
    """Whether it is woken when all nodes are news."""
    api, cluster = Api(), scene.begin()
    waker = Waker(cluster, api, clock=lambda: 0.0)
    cluster.tell_of_all_nodes()
    waker.round(0.0)
    return scene.record.uid in api.woken


def _why(scene: Scene) -> dict[str, Any]:
    """The answers about the nodes that kube-scheduler may offer."""
    snapshot = scene.begin().snapshot()
    rows = [row for row in answers_to(snapshot, scene.record) if not row.ineligible]
    answer = explanation_of(snapshot, scene.record)
    assert isinstance(answer, Explanation)
    unserved = {row.node for row in rows} - {*scene.offered}
    assert {row.reason for row in rows if row.node in unserved} <= {Reason.NOT_SERVED}
    refused = {row.node: row.decision.rejection for row in rows if row.node in scene.offered}
    return {
        "why": {name: why and why.reason for name, why in refused.items()},
        "why: resolvable": {name for name, why in refused.items() if why and why.resolvable},
        "why: scores": {row.node: row.score for row in rows if row.score is not None},
        "why: ends": {name.partition("/")[2] for each in answer.helps for name in each.pods},
    }


def _metric(scene: Scene) -> str:
    counted = WaitingReasons(scene.begin()).count()
    return ",".join(reason for reason, pods in counted.items() if pods)


def _event(scene: Scene) -> bool:
    answer: list[PodUid] = []
    WaitingPods(scene.begin(), lambda pod, text: answer.append(pod.uid)).round(100.0)
    return scene.record.uid in answer


def _idle(scene: Scene) -> set[str]:
    """Whose end would help it, if all pods were idle."""
    cluster, uid = scene.begin(), scene.record.uid
    for info in cluster.snapshot().nodes:
        report = info.report
        if report is not None:
            idle = tuple(
                IdleAllocation(each.pod_uid, each.container, each.resource, IDLE_SINCE)
                for each in report.allocations
            )
            report = replace(report, sequence=9, idle=idle, observed_at=OBSERVED)
            cluster.put_report(info.name, report)
    snapshot = cluster.snapshot()
    tried = what_ends_would_do(snapshot, idle_pods(snapshot, 0.0), NO_DEADLINE)
    return {
        name
        for name, completes in tried.completes.items()
        if any(uid == helped.uid for each in completes for helped in each.pods)
    }


def _unblocks(scene: Scene) -> str | None:
    meta = scene.pod.metadata
    found = eviction_advice(scene.begin(), meta.namespace, meta.name)
    assert found is not None
    return found.takes if found.plan is None else found.plan.node


# The situations.


def asks(
    gpus: int = 2, annotations: Mapping[str, str] = NVLINK, priority: int = 0, **status: Any
) -> dict[str, Any]:
    """The pod."""
    manifest = pod(gpus, dict(annotations), name=NAME, uid=NAME, **status)
    manifest["spec"]["priority"] = priority
    return manifest


def a_member(**more: Any) -> dict[str, Any]:
    """The pod as a member of a group of two."""
    return member(NAME, size=2, **more)


def member_of_gang(gpus: int = 4, annotations: Mapping[str, str] = RACK) -> dict[str, Any]:
    """The pod as a member of a gang of two."""
    return member(NAME, "", 2, gpus, annotations, GANG)


def racks(trays: Mapping[str, int], manifest: dict[str, Any], *others: dict[str, Any]) -> Scene:
    """Racks of trays, and others that are there or wait."""
    scheduler = Scheduler(trays)
    for other in others:
        scheduler.cluster.put_pod(record_of(other))
    return Scene(scheduler.cluster, manifest, scheduler.names)


def other(name: str, priority: int, node: str = "", nominated: str = "") -> dict[str, Any]:
    """Another pod that wants a whole tray."""
    found = pod(4, NVLINK, name=name, uid=name, node=node or None)
    found["spec"]["priority"] = priority
    if node:
        found["status"]["phase"] = "Running"
    if nominated:
        found["status"]["nominatedNodeName"] = nominated
    return found


def in_a_group(policy: str = "required") -> Scene:
    return racks({"a": 2}, a_member(annotations={**RACK, "policy": policy}))


def beside_another_group() -> Scene:
    """One member of the other group has a tray, and the second tray is kept for its second."""
    first = member("first", group="other", size=2)
    first["spec"]["nodeName"] = "a-00"
    return racks({"a": 2}, member_of_gang(annotations={}), first)


def beside_a_yielding_reservation(trays: int) -> Scene:
    """One tray is reserved for a pod of lower priority. Of three trays one is held by a pod of
    lower and one by a pod of higher priority."""
    held = (other("low", 0, node="a-00"), other("high", 100, node="a-02"))
    mine = a_member()
    mine["spec"]["priority"] = 11
    nominee = other("nominee", 5, nominated="a-01")
    nominee["spec"]["tolerations"] = [{"operator": "Exists"}]  # a cordon, too
    return racks({"a": trays}, mine, nominee, *(held if trays == 3 else ()))


def beside_a_reservation_that_does_not_yield_to_a_peer() -> Scene:
    """The other member of the group is of lower priority than the pod for which it is kept."""
    scene = beside_a_yielding_reservation(trays=2)
    scene.cluster.put_pod(record_of(member("sibling", size=2)))
    return scene


def where_a_member_and_another_pod_are_nominated() -> Scene:
    """The node keeps the member's place, and behind it that of the pod that was nominated there
    with a lower priority: higher than the sibling's."""
    scene = beside_a_reservation_that_does_not_yield_to_a_peer()
    scene.manifest["status"]["nominatedNodeName"] = "a-01"
    scene.cluster.put_pod(record_of(scene.manifest))
    return scene


def beside_a_yielding_reservation_on_a_cordoned_node() -> Scene:
    scene = beside_a_yielding_reservation(trays=2)
    node = NodeObject(exists=True, cordoned=True)
    scene.cluster.put_node(NodeName("a-01"), node)
    return replace(scene, offered=["a-00"])


TOLERATES = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]


def of_members_that_tolerate_a_cordon(*, peer: bool) -> Scene:
    """One of two trays is cordoned. The pod tolerates it, and so may its peer."""
    mine, other = a_member(), member("sibling", size=2)
    mine["spec"]["tolerations"] = TOLERATES
    other["spec"]["tolerations"] = TOLERATES if peer else []
    scene = racks({"a": 2}, mine, other)
    for name in map(NodeName, scene.offered):
        scene.cluster.put_node(name, NodeObject(exists=True, cordoned=name == "a-01"))
    return scene


def beside_a_peer_that_asks_for_more() -> Scene:
    """The one tray of the first rack holds either of the two."""
    return racks({"a": 1, "b": 2}, a_member(gpus=1), member("sibling", size=2))


def beside_a_peer_that_asks_for_less() -> Scene:
    """Of the second tray one GPU is free."""
    held = pod(3, NVLINK, name="held", uid="held", node="a-01")
    held["status"]["phase"] = "Running"
    return racks({"a": 2}, a_member(), member("sibling", size=2, gpus=1), held)


def where_it_may_take_what_a_peer_needs() -> Scene:
    scene = beside_a_peer_that_asks_for_less()
    scene.cluster.put_pod(record_of(member("sibling", size=2)))
    return replace(scene, manifest=a_member(gpus=1))


def with_a_better_rack_that_is_ineligible() -> Scene:
    mine = member_of_gang()
    mine["spec"]["nodeSelector"] = {"zone": "b"}
    scene = racks({"a": 2, "b": 3}, mine)
    for name in scene.offered:
        zone = NodeObject(exists=True, labels={"zone": name[0]})
        scene.cluster.put_node(NodeName(name), zone)
    return replace(scene, offered=[name for name in scene.offered if name[0] == "b"])


def where_only_a_risky_node_is_offered(*, cordoned: bool) -> Scene:
    """``--refusals possible``: a node that may refuse the pod is left out where others do not."""
    cluster = Cache(lambda: 0.0, under(Refusals.POSSIBLE))
    cluster.put_record(UNASKED, Report("boot", 1))
    cluster.put_node(UNASKED.name, NodeObject(exists=True))
    if cordoned:
        cluster.put_record(SURE, Report("boot", 1))
        cluster.put_node(SURE.name, NodeObject(exists=True, cordoned=True))
    else:
        cluster.put_node(NodeName("cpu-only"), CPU_ONLY)
    return Scene(cluster, pinned(2), [UNASKED.name])


def beside_a_node_without_gpus() -> Scene:
    cluster = cluster_of({PAIRS: {"sleeper": Held((0, 1, 2, 3))}})
    cluster.put_node(NodeName("cpu-only"), CPU_ONLY)
    return Scene(cluster, asks(annotations={}), [PAIRS.name])


def beside_an_ineligible_node_that_would_take_it() -> Scene:
    cluster = cluster_of({PAIRS: {"sleeper": Held((0, 1, 2, 3))}, OTHER: {}})
    cluster.put_node(NodeName(OTHER.name), NodeObject(exists=True, cordoned=True))
    return Scene(cluster, asks(annotations={}), [PAIRS.name])


def assumed_on_a_node_where_another_came_first() -> Scene:
    cluster = cluster_of(
        {PAIRS: {"first": Held((0, 1))}, OTHER: {"low": Held((0, 1, 2, 3), priority=-5)}}
    )
    by_hand = record_of(pod(1, name="by-hand", uid="by-hand", node=PAIRS.name))
    then = lambda: cluster.put_pod(by_hand)  # noqa: E731
    return Scene(cluster, asks(), [PAIRS.name, OTHER.name], PAIRS.name, then)


def of_two_pairs(priority: int) -> Scene:
    """Two nodes that are alike, but that a pod of lower priority has a place on one of them."""
    cluster = cluster_of({PAIRS: {"a": Held((0,))}, OTHER: {"b": Held((0,))}})
    nominee = other("nominee", 5, nominated=PAIRS.name)
    nominee["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 2
    cluster.put_pod(record_of(nominee))
    return Scene(cluster, asks(1, {}, priority), [PAIRS.name, OTHER.name])


def beside_two_nominated_pods(first: int, second: int) -> Scene:
    """The first is nominated to the pairs for one GPU, the second for two of them."""
    cluster = cluster_of({PAIRS: {}, OTHER: {}})
    for name, gpus, priority in (("a-single", 1, first), ("pair", 2, second)):
        nominee = pod(gpus, NVLINK if gpus > 1 else {}, name=name, uid=name)
        nominee["spec"]["priority"] = priority
        nominee["status"]["nominatedNodeName"] = PAIRS.name
        cluster.put_pod(record_of(nominee))
    return Scene(cluster, asks(1, {}, 5), [PAIRS.name, OTHER.name])


def beside_a_nominated_pod_that_cannot_come() -> Scene:
    """Two pods are nominated to the pairs: one for all four GPUs, then one for two of them."""
    cluster = cluster_of({PAIRS: {"holds": Held((0,))}, OTHER: {}})
    for name, gpus, priority in (("all", 4, 9), ("pair", 2, 8)):
        nominee = pod(gpus, NVLINK if gpus == 2 else {}, name=name, uid=name)
        nominee["spec"]["priority"] = priority
        nominee["status"]["nominatedNodeName"] = PAIRS.name
        cluster.put_pod(record_of(nominee))
    return Scene(cluster, asks(2, NVLINK, 5), [PAIRS.name, OTHER.name])


def with_claims_for_a_network_card() -> Scene:
    world = two_pairs()
    card = {"request": "r", "driver": "nic.example.com", "pool": "p", "device": "nic-0"}
    given = {"allocation": {"devices": {"results": [card]}}}
    meta = {"namespace": "ns", "name": "c", "uid": "c"}
    world.claims.apply(raw({"metadata": meta, "status": given}))
    world.cluster.put_record(switched(4, "plugin"), Report("boot", 1))
    world.cluster.put_node(NodeName("plugin"), NodeObject(exists=True))
    return Scene(world.cluster, msgspec.to_builtins(of_claim(NVLINK, "c")), [DRA_NODE, "plugin"])


def with_claims_for_another_model() -> Scene:
    world = two_pairs()
    world.claims.apply(asking("c", exactly(2)))
    return Scene(
        world.cluster, msgspec.to_builtins(of_claim({"gpu-model": "H100*"}, "c")), [DRA_NODE]
    )


def with_claims_assumed() -> Scene:
    world = two_pairs()
    world.cluster.put_node(NodeName("other"), CPU_ONLY)
    world.slices.apply(slice_of("other", *map(device, range(4)), name="s2", pool="other"))
    world.speak(1, NodeName("other"))
    world.claims.apply(asking("c", exactly(1)))
    mine = msgspec.to_builtins(of_claim({"gpu-model": "A100*"}, "c"))
    return Scene(world.cluster, mine, [DRA_NODE, "other"], DRA_NODE)


def beside_dra(*claims: msgspec.Raw) -> Scene:
    """The pod is nominated to a node with DRA: kube-scheduler has chosen devices there. ``claims``
    may name them."""
    world = two_pairs()
    for each in claims:
        world.claims.apply(each)
    for node in (pcie(4, "plain"), switched(4, "linked")):
        world.cluster.put_record(node, Report("boot", 1))
        world.cluster.put_node(node.name, NodeObject(exists=True))
    mine = asks(1, {}, nominatedNodeName=DRA_NODE)
    return Scene(world.cluster, mine, [DRA_NODE, "plain", "linked"])


def with_a_claim_of(resource: str, annotations: Mapping[str, str] = NVLINK) -> Scene:
    """The pod's status names a claim that stands for what a container asks for by number."""
    cluster = cluster_of({switched(4, "plugin"): {}})
    mapping = {"containerName": "main", "resourceName": resource, "requestName": "r"}
    named = {"requestMappings": [mapping], "resourceClaimName": "c"}
    mine = asks(annotations=annotations, extendedResourceClaimStatus=named)
    return Scene(cluster, mine, ["plugin"])


def where_peers_may_come_first() -> Scene:
    cube = machine("dgx1-v100").topology("cube")
    cluster = cluster_of({cube: {"holds": Held((0, 5, 6, 7))}})
    return Scene(cluster, member_of_gang(2, {}), ["cube"])


def ineligible_by_its_selector() -> Scene:
    cluster = cluster_of({switched(4, "n"): {}})
    cluster.put_node(NodeName("n"), NodeObject(exists=True, labels={"zone": "a"}))
    picky = pod(2, NVLINK, name=NAME, uid=NAME)
    picky["spec"]["nodeSelector"] = {"zone": "b"}
    return Scene(cluster, picky, [])


def assumed() -> Scene:
    cluster = cluster_of({PAIRS: {}, OTHER: {}})
    return Scene(cluster, asks(), [PAIRS.name, OTHER.name], PAIRS.name)


def beside_a_cordoned_node() -> Scene:
    names = ("clean", "half", "big")
    clean, half = (machine("a100-pcie-4-bridged").topology(name) for name in names[:2])
    big = machine("hgx-h100-8").topology("big")
    cluster = cluster_of({clean: {}, half: {"holds": Held((0,))}, big: {}})
    for name in names:
        node = NodeObject(exists=True, cordoned=name == "half")
        cluster.put_node(NodeName(name), node)
    return Scene(cluster, asks(1, {}), ["clean", "big"])


def of_racks_of_two_sizes() -> Scene:
    return racks({"a": 2, "b": 3}, a_member())


def case(number: str, build: Callable[[], Scene], right: Right) -> Any:
    return pytest.param(build, right, id=number)


BOTH = {"a-00": None, "a-01": None}
BUSY, CLAIMS, GROUP = Reason.BUSY, Reason.CLAIMS, Reason.GROUP
ASSUMED, KUBELET, NOT_SERVED = Reason.IN_PROGRESS, Reason.KUBELET, Reason.NOT_SERVED
SITUATIONS = [
    case("1: its group's domain takes a member", in_a_group, Right(BOTH, unblocks="a-00")),
    case(
        "1: so it does one that only prefers it",
        lambda: in_a_group("preferred"),
        Right(BOTH, unblocks="a-00"),
    ),
    case(
        "1, 11: reserved for another group",
        beside_another_group,
        Right(
            {"a-00": BUSY, "a-01": GROUP},
            resolvable={"a-00", "a-01"},
            main=BUSY,
            binds={"a-01"},  # it is not refused late what filter keeps off
        ),
    ),
    case(
        "2: a place yields to a group",
        lambda: beside_a_yielding_reservation(trays=2),
        Right(BOTH, unblocks="a-00"),
    ),
    case(
        "2: a place yields where others have to go",
        lambda: beside_a_yielding_reservation(trays=3),
        Right(
            {"a-00": BUSY, "a-01": GROUP, "a-02": BUSY},
            resolvable={"a-00", "a-01", "a-02"},
            main=BUSY,
            evicts={"a-00"},
            unblocks="a-00",
        ),
    ),
    case(
        "2: a place yields to one member of two",
        beside_a_reservation_that_does_not_yield_to_a_peer,
        Right({"a-00": GROUP, "a-01": GROUP}, resolvable={"a-00", "a-01"}, main=GROUP),
    ),
    case(
        "2: a place behind a member's own yields to one of two",
        where_a_member_and_another_pod_are_nominated,
        Right({"a-00": GROUP, "a-01": GROUP}, resolvable={"a-00", "a-01"}, main=GROUP),
    ),
    case(
        "2: a place yields where nobody may go",
        beside_a_yielding_reservation_on_a_cordoned_node,
        Right({"a-00": GROUP}, resolvable={"a-00"}, main=GROUP),
    ),
    case(
        "2: all members tolerate the cordon of a node",
        lambda: of_members_that_tolerate_a_cordon(peer=True),
        Right(BOTH, unblocks="a-00"),
    ),
    case(
        "2: a sibling does not tolerate the cordon of a node",
        lambda: of_members_that_tolerate_a_cordon(peer=False),
        Right({"a-00": GROUP, "a-01": GROUP}, resolvable={"a-00", "a-01"}, main=GROUP),
    ),
    case(
        "2: a sibling asks for more than its domain would have left",
        beside_a_peer_that_asks_for_more,
        Right({"a-00": GROUP, "b-00": None, "b-01": None}, resolvable={"a-00"}, unblocks="b-00"),
    ),
    case(
        "2: a sibling asks for less",
        beside_a_peer_that_asks_for_less,
        Right({"a-00": None, "a-01": BUSY}, resolvable={"a-01"}, unblocks="a-00"),
    ),
    case(
        "2: on one node it would take what a sibling needs",
        where_it_may_take_what_a_peer_needs,
        Right({"a-00": GROUP, "a-01": None}, resolvable={"a-00"}, unblocks="a-01"),
    ),
    case(
        "3: the better domain is closed",
        with_a_better_rack_that_is_ineligible,
        Right({"b-00": None, "b-01": None, "b-02": None}, unblocks="b-00"),
    ),
    case(
        "4: a node that is never offered would not refuse it",
        lambda: where_only_a_risky_node_is_offered(cordoned=False),
        Right({"unasked": None}),
    ),
    case(
        "4: a cordoned node would not refuse it",
        lambda: where_only_a_risky_node_is_offered(cordoned=True),
        Right({"unasked": None}),
    ),
    case(
        "5, 11: a Node without GPUs",
        beside_a_node_without_gpus,
        Right({"pairs": BUSY}, resolvable={"pairs"}, main=BUSY, ends={"sleeper"}),
    ),
    case(
        "5, 11: a closed node would take it",
        beside_an_ineligible_node_that_would_take_it,
        Right({"pairs": BUSY}, resolvable={"pairs"}, main=BUSY, ends={"sleeper"}),
    ),
    case(
        "6, 11: in flight to a node where another came first",
        assumed_on_a_node_where_another_came_first,
        Right(
            {"pairs": BUSY, "other": ASSUMED},
            resolvable={"pairs"},
            main=BUSY,
            ends={"first"},
            flies=True,
        ),
    ),
    case(
        "7: its claims have no GPUs",
        with_claims_for_a_network_card,
        Right({"node": CLAIMS, "plugin": NOT_SERVED}, resolvable={"node", "plugin"}, main=CLAIMS),
    ),
    case(
        "8: in flight to a node with a yielding place",
        lambda: replace(of_two_pairs(11), flies_to="pairs"),
        Right({"pairs": None, "other": ASSUMED}, unblocks="pairs", flies=True, on="pairs"),
    ),
    case(
        "9: in flight, with claims of its own",
        with_claims_assumed,
        Right({"node": None, "other": ASSUMED}, binds=(), unblocks="node", flies=True, on="node"),
    ),
    case(
        "10: a place yields to it",
        lambda: of_two_pairs(11),
        Right({"pairs": None, "other": None}, unblocks="other"),
    ),
    case(
        "10: a place does not yield",
        lambda: of_two_pairs(5),
        Right({"pairs": Reason.RESERVED, "other": None}, unblocks="other"),
    ),
    *(
        case(
            f"10: two pods are nominated, {name}",
            partial(beside_two_nominated_pods, first, second),
            Right(
                {"pairs": Reason.RESERVED if reserved else None, "other": None},
                unblocks="other",
            ),
        )
        for name, first, second, reserved in (
            ("the pair behind", 9, 8, True),
            ("as important as one another", 8, 8, True),
            ("the pair first", 8, 9, False),
            ("and the pair gives way", 9, 4, False),
        )
    ),
    case(
        "10: two pods are nominated, and the first cannot come",
        beside_a_nominated_pod_that_cannot_come,
        Right({"pairs": Reason.RESERVED, "other": None}, unblocks="other"),
    ),
    case(
        "11: its status names a claim",
        lambda: with_a_claim_of("nvidia.com/gpu"),
        Right({"plugin": KUBELET}, main=KUBELET, binds={}),
    ),
    case(
        "11: so does that of a pod that requires nothing",
        lambda: with_a_claim_of("nvidia.com/gpu", {}),
        Right({"plugin": KUBELET}, main=KUBELET, binds={}),
    ),
    case(
        "11: siblings may come first",
        where_peers_may_come_first,
        Right({"cube": GROUP}, resolvable={"cube"}, main=GROUP, unblocks="cube"),
    ),
    case("11: all nodes are closed to it", ineligible_by_its_selector, Right({})),
    case(
        "13: the claim is for another resource",
        lambda: with_a_claim_of("nvidia.com/gpu.shared"),
        Right({"plugin": None}, unblocks="plugin"),
    ),
    case(
        "14, 11: in flight",
        assumed,
        Right({"pairs": None, "other": ASSUMED}, unblocks="pairs", flies=True, on="pairs"),
    ),
    case(
        "15: the best domain",
        of_racks_of_two_sizes,
        Right(
            BOTH | dict.fromkeys(("b-00", "b-01", "b-02")),
            {"a-00": 10, "a-01": 10, "b-00": 3, "b-01": 3, "b-02": 3},
            unblocks="a-00",
        ),
    ),
    case(
        "15: a cordoned node has no part in the scores",
        beside_a_cordoned_node,
        Right({"clean": None, "big": None}, {"clean": 10, "big": 0}, unblocks="big"),
    ),
    case(
        "15: a node that it is only nominated to is scored as the others are",
        beside_dra,
        Right(
            {"node": None, "plain": None, "linked": None},
            {"node": 10, "plain": 5, "linked": 0},
            unblocks="linked",
        ),
    ),
    case(
        "15: a node that counts it has a part in the scores",
        lambda: beside_dra(claim("c", 3, pod=NAME)),
        Right(
            {"node": None, "plain": None, "linked": None},
            {"node": 10, "plain": 5, "linked": 0},
            unblocks="linked",
            on="node",
        ),
    ),
    case(
        "16: claims that are freed may help",
        with_claims_for_another_model,
        Right({"node": Reason.MODEL}, resolvable={"node"}, main=Reason.MODEL),
    ),
]


@pytest.mark.parametrize(("build", "right"), SITUATIONS)
def test_all_askers_give_the_right_answer(build: Callable[[], Scene], right: Right) -> None:
    assert answers_of(build) == right.told()


@pytest.mark.parametrize(
    ("build", "right"), [each for each in SITUATIONS if each.values[0]().of_a_file]
)
def test_check_and_what_if_say_the_same_of_a_file(build: Callable[[], Scene], right: Right) -> None:
    """The pod does not exist yet."""
    scene, scores = build(), right.told()["why: scores"]
    text = json.dumps({"kind": "Pod", **scene.manifest})
    page = Pages(scene.cluster).what_if(text).partition('id="answer"')[2]
    assert {*re.findall(r'<th scope="row"><a [^>]*>(.*?)</a>', page)} == scores.keys()
    (judged,) = judge(scene.cluster, read_all(text)).judged
    assert {row.node: row.score for row in judged.answers if row.may_come} == scores


@pytest.mark.parametrize("named", ["first", "second"])
def test_of_two_pods_that_ask_the_same_the_metric_counts_the_one_whose_status_names_a_claim(
    named: str,
) -> None:
    """12. Pods to which all nodes answer alike are looked at together."""
    scene = with_a_claim_of("nvidia.com/gpu")
    for name in ("first", "second"):
        mine = scene.manifest if name == named else asks()
        metadata = {**mine["metadata"], "name": name, "uid": name}
        replace(scene, manifest={**mine, "metadata": metadata}).begin()
    counted = WaitingReasons(scene.cluster).count()
    assert {reason: pods for reason, pods in counted.items() if pods} == {"kubelet": 1, "none": 1}


@pytest.mark.parametrize("named", ["first", "second"])
def test_of_two_pods_that_ask_the_same_the_metric_counts_the_one_whose_claim_has_gpus(
    named: str,
) -> None:
    """12. No other pod can have these, and kube-scheduler has not written yet where it sends it."""
    world = two_pairs()
    world.claims.apply(claim("strangers", 2, 3, pod="stranger"))
    world.claims.apply(claim("its-own", 0, 1, pod=named))
    scene = Scene(world.cluster, asks(), [DRA_NODE])
    for name in ("first", "second"):
        metadata = {**scene.manifest["metadata"], "name": name, "uid": name}
        replace(scene, manifest={**scene.manifest, "metadata": metadata}).begin()
    counted = WaitingReasons(scene.cluster).count()
    assert {reason: pods for reason, pods in counted.items() if pods} == {"busy": 1, "none": 1}


def test_the_copies_of_a_pod_are_counted_where_a_reservation_yields_to_them() -> None:
    """2. Of each of the two nodes three GPUs are free; two are reserved on one of them."""
    scene = of_two_pairs(priority=11)
    spec = {"replicas": 6, "template": scene.manifest}
    text = json.dumps({"kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
    (judged,) = judge(scene.cluster, read_all(text)).judged
    assert judged.room == 6
