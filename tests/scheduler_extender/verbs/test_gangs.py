"""A gang's members pass only where every peer that may come first leaves them what they ask.

Its scheduler asks filter about all members before it binds the first. So each of these tests asks
about all of them first, lets the scheduler choose as badly as it may, and binds in any order.
"""

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.framework.rules.gangs import PEERS
from scheduler_extender.state.groups.gangdomains import QUIET
from scheduler_extender.state.groups.groups import (
    ANOTHER_CHOSEN,
    NEVER,
    RESERVED_FOR_GROUP,
    TOO_SMALL,
)
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import amounts_of
from scheduler_extender.state.pods.reservation import Reservation
from scheduler_extender.verbs import preempt
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs
from tests.nodes import pod, record_of
from tests.scheduler_extender.verbs.racks import RACK, Scheduler, member, rack
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

LABEL = "scheduling.x-k8s.io/pod-group"


def gang(name: str, size: int = 0, gpus: int = 2, **annotations: str) -> dict[str, Any]:
    """A pod of the gang ``g``; ``size`` 0 says nothing of how many there are."""
    ours = {"link": "nvlink", **annotations, **({"group-size": str(size)} if size else {})}
    found = pod(gpus, ours, name=name, uid=f"uid-{name}")
    found["metadata"]["labels"] = {LABEL: "g"}
    return found


def on(kind: str, count: int = 1, free: Iterable[int] | None = None) -> Scheduler:
    """A cluster of nodes of one kind, whose GPUs are ``free``, or all."""
    scheduler = Scheduler({})
    for i in range(count):
        node = machine(kind).topology(f"{kind}-{i}")
        taken = set(range(len(node.gpus))) - set(range(len(node.gpus)) if free is None else free)
        ids = tuple(DeviceId(node.gpus[p].uuid) for p in sorted(taken))
        uid = PodUid(f"held-{i}")
        held = Allocation(uid, "default", uid, "main", "nvidia.com/gpu", ids)
        scheduler.names.append(node.name)
        scheduler.cluster.put_record(node, Report("boot", 1, allocations=(held,) if ids else ()))
        if ids:
            found = pod(len(ids), name=uid, uid=uid, node=node.name, phase="Running")
            scheduler.cluster.put_pod(record_of(found))
    return scheduler


@pytest.mark.parametrize(("kind", "pairs"), [("hgx-h100-8", 4), ("dgx2", 8)])
def test_pairs_fill_a_machine_on_which_all_gpus_are_linked(kind: str, pairs: int) -> None:
    scheduler = on(kind)
    pods = [gang(f"p{i}", pairs) for i in range(pairs)]
    for asked in pods:
        assert scheduler.passing(asked) == scheduler.names
    for asked in pods:
        assert scheduler.bind(asked, scheduler.names[0]) == ""


def test_a_pod_that_takes_a_whole_node_has_no_peer_beside_it() -> None:
    scheduler = on("dgx1-v100", 2)
    asked = [gang(f"p{i}", 2, 8, shape="connected") for i in range(2)]
    assert [scheduler.passing(each) for each in asked] == [scheduler.names] * 2
    assert scheduler.bind(asked[0], "dgx1-v100-0") == ""
    assert scheduler.bind(asked[1], "dgx1-v100-1") == ""


def test_peers_may_break_up_what_a_cube_mesh_has() -> None:
    """GPUs 1 to 4 of a DGX-1V: a pair is promised alone; after another one, two may be left that
    are not linked. Six GPUs hold a triple, and not always two."""
    scheduler = on("dgx1-v100", free=(1, 2, 3, 4))
    assert scheduler.passing(pod(2, {"link": "nvlink"})) == scheduler.names
    found = scheduler.filter(gang("p0", 2))
    assert found.failed == dict.fromkeys(scheduler.names, PEERS.message)
    scheduler = on("dgx1-v100", free=range(6))
    assert scheduler.passing(pod(3, {"link": "nvlink"})) == scheduler.names
    assert scheduler.reasons(gang("t0", 2, 3)) == {PEERS.message}
    assert scheduler.bind(gang("t0", 2, 3), scheduler.names[0]) == PEERS.message


def sent(
    scheduler: Scheduler,
    rng: random.Random,
    left: dict[str, int],
    pods: list[tuple[dict[str, Any], int]],
) -> list[tuple[dict[str, Any], str]]:
    """Where a scheduler sends pods of so many GPUs each, by the GPUs that are ``left``, in some
    order; empty where it would bind none of them."""
    chosen = []
    for each, gpus in pods:
        fits = [name for name in scheduler.passing(each) if left[name] >= gpus]
        if not fits:
            return []
        chosen.append((each, rng.choice(fits)))
        left[chosen[-1][1]] -= gpus
    rng.shuffle(chosen)
    return chosen


@pytest.mark.parametrize("kind", ["dgx1-v100", "a100-pcie-4-bridged", "dgx-a100", "l40s-4"])
@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
@pytest.mark.parametrize("constraint", ["link", "same-numa", "none"])
def test_when_all_members_pass_each_bind_is_done(kind: str, gpus: int, constraint: str) -> None:
    """Whatever the scheduler chooses among the nodes that passed, by count, and in any order."""
    keys = {"link": {"link": "nvlink"}, "same-numa": {"same-numa": "true"}, "none": {}}
    rng = random.Random(f"{kind} {gpus} {constraint}")
    started = 0
    for size, taken in itertools.product((2, 3, 4, 0), (0, 1, 2)):
        scheduler = on(kind, 2)
        left = dict.fromkeys(scheduler.names, 8 if kind.startswith("dgx") else 4)
        for i in range(taken):
            first = pod(1, name=f"first{i}", uid=f"first{i}")
            node = rng.choice(scheduler.names)
            if scheduler.bind(first, node) == "":
                left[node] -= 1
        pods = [gang(f"p{i}", size, gpus) for i in range(size or 3)]
        for each in pods:
            annotations = each["metadata"]["annotations"]
            del annotations["gpu-topology.io/link"]
            annotations |= {f"gpu-topology.io/{k}": v for k, v in keys[constraint].items()}
        chosen = sent(scheduler, rng, left, [(each, gpus) for each in pods])
        started += bool(chosen)
        for each, node in chosen:
            assert scheduler.bind(each, node) == ""
    if constraint == "none" or (constraint, kind) == ("link", "dgx-a100"):
        assert started


MIXED = (("", 1), ("", 1), ("nvlink", 2), ("nvlink", 2), ("nvlink", 3), ("nvlink", 4), ("", 2))


@pytest.mark.parametrize("kind", ["dgx1-v100", "a100-pcie-4-bridged", "hgx-h100-8"])
def test_members_that_ask_for_different_things_are_all_bound(kind: str) -> None:
    """Each member counts what its peers ask for, as far as they have been seen."""
    started = 0
    for seed in range(40):
        rng = random.Random(f"{kind} {seed}")
        scheduler = on(kind, 2)
        left = dict.fromkeys(scheduler.names, 4 if kind.startswith("a100") else 8)
        for i in range(rng.randrange(3)):
            node = rng.choice(scheduler.names)
            left[node] -= scheduler.bind(pod(1, name=f"first{i}", uid=f"first{i}"), node) == ""
        asks = [rng.choice(MIXED) for _ in range(rng.randint(2, 5))]
        pods = [gang(f"p{i}", len(asks), n) for i, (_, n) in enumerate(asks)]
        for each, (link, _) in zip(pods, asks, strict=True):
            if not link:
                del each["metadata"]["annotations"]["gpu-topology.io/link"]
            scheduler.cluster.put_pod(record_of(each))
        chosen = sent(scheduler, rng, left, [(p, n) for p, (_, n) in zip(pods, asks, strict=True)])
        started += bool(chosen)
        for each, node in chosen:
            assert scheduler.bind(each, node) == "", (seed, asks)
    assert started >= 5


def test_what_a_peer_asks_counts_until_it_is_bound_or_gone() -> None:
    """GPUs 0 to 2 are free, and 0 and 1 are bridged: a pod with one GPU may take one of them."""
    scheduler = on("a100-pcie-4-bridged", free=(0, 1, 2))
    worker, leader = gang("worker", 2), gang("leader", 2, 1)
    del leader["metadata"]["annotations"]["gpu-topology.io/link"]
    seen = record_of(leader)
    assert scheduler.passing(worker) == scheduler.names, "nobody has told of the leader"
    scheduler.cluster.put_pod(seen)
    assert scheduler.reasons(worker) == {PEERS.message}
    for gone in (replace(seen, terminating=True), replace(seen, node=NodeName("elsewhere"))):
        scheduler.cluster.put_pod(gone)
        assert scheduler.passing(worker) == scheduler.names
        scheduler.cluster.drop_pod(seen.uid)
        scheduler.cluster.put_pod(seen)
        assert scheduler.reasons(worker) == {PEERS.message}
    ours = scheduler.cluster.assume(NodeName("elsewhere"), seen)
    assert ours is not None
    assert scheduler.passing(worker) == scheduler.names
    scheduler.cluster.forget(ours)
    assert scheduler.reasons(worker) == {PEERS.message}, "its bind has failed, it comes again"


def test_the_reservation_of_a_member_counts_once_against_its_peers() -> None:
    """It is for one of those that may come first: four GPUs are enough for two pairs."""
    scheduler = on("hgx-h100-8", free=range(4))
    pods = [gang(f"p{i}", 2) for i in range(2)]
    (name,) = scheduler.names
    until = scheduler.cluster.today() + 600.0
    scheduler.cluster.put_pod(
        replace(record_of(pods[1]), reservation=Reservation(NodeName(name), until))
    )
    assert [scheduler.passing(each) for each in pods] == [[name]] * 2
    other = pod(4, {"link": "nvlink"}, name="stranger", uid="stranger")
    assert scheduler.passing(other) == []
    assert [scheduler.bind(each, name) for each in pods] == ["", ""]


def test_a_gang_of_unknown_size_counts_the_whole_capacity() -> None:
    """Six free GPUs take two pairs whichever come first, and not always three."""
    scheduler = on("dgx1-v100", free=(1, 2, 3, 4, 6, 7))
    two, any_number = scheduler.passing(gang("p0", 2)), scheduler.passing(gang("p1"))
    assert (two, any_number) == (scheduler.names, [])


def test_peers_that_are_bound_count_as_what_they_are() -> None:
    """The last member comes after all others, so only bound members may come before it."""
    scheduler = on("dgx1-v100", 2, free=range(6))
    first, last = gang("t0", 2, 3), gang("t1", 2, 3)
    assert scheduler.passing(last) == []
    scheduler.cluster.put_pod(
        replace(record_of(first), node=NodeName("dgx1-v100-0"))
    )  # by somebody else
    assert scheduler.passing(last) == ["dgx1-v100-1"]


def test_the_stock_scheduler_binds_one_by_one_and_no_peer_comes_first() -> None:
    scheduler = on("dgx1-v100", free=range(6))
    asked = member("t0", "g", 2, 3, {"group-domain": "node", "policy": "preferred"})
    assert scheduler.passing(asked) == scheduler.names


def test_a_gang_goes_to_one_rack_though_no_member_is_bound_yet() -> None:
    scheduler = Scheduler({"a": 18, "b": 18, "half": 9})
    pods = [member(f"m{i}", "", 18, 4, RACK, {LABEL: "g"}) for i in range(18)]
    found = [scheduler.filter(each) for each in pods]
    assert len({tuple(each.node_names or ()) for each in found}) == 1
    (chosen,) = {name[0] for name in found[0].node_names or ()}
    assert set(found[0].failed.values()) == {ANOTHER_CHOSEN.message}
    assert found[0].unresolvable == dict.fromkeys(rack("half", 9), NEVER.message)
    for each, node in zip(pods, reversed(rack(chosen)), strict=True):
        assert scheduler.bind(each, node) == ""


def test_another_groups_reservations_make_way_where_it_has_others() -> None:
    """While members of a gang are bound, what is kept for others may move to a node that a member
    was sent to. It moves on then, and the gang is bound whole."""
    for room in (2, 1):
        scheduler = Scheduler({"a": 3})
        assert scheduler.bind(member("b0", "other", 2, 1), "a-02") == ""
        assert scheduler.bind(pod(3, name="plain", uid="plain"), "a-02") == ""
        assert scheduler.bind(pod(4 - room, name="beside", uid="beside"), "a-01") == ""
        gang_of_five = [member(f"g{i}", "", 5, 1, labels={LABEL: "g"}) for i in range(5)]
        passing = [scheduler.passing(each) for each in gang_of_five]
        if room == 1:
            assert passing == [[]] * 5
            continue
        assert passing == [["a-00", "a-01"]] * 5
        assert [scheduler.bind(each, "a-00") for each in gang_of_five[:4]] == [""] * 4
        assert scheduler.bind(gang_of_five[4], "a-01") == ""
        assert scheduler.bind(member("b1", "other", 2, 1), "a-01") == ""


def test_a_reservation_that_cannot_move_is_not_given_to_a_gang() -> None:
    scheduler = Scheduler({"a": 2})
    assert scheduler.bind(member("b0", "other", 2, 2), "a-01") == ""
    assert scheduler.bind(pod(2, name="plain", uid="plain"), "a-01") == ""
    pods = [member(f"g{i}", "", 2, 1, labels={LABEL: "g"}) for i in range(2)]
    assert [scheduler.passing(each) for each in pods] == [["a-00"]] * 2
    beside = pod(2, name="beside", uid="beside")
    assert scheduler.bind(beside, "a-00") == "", "plain pods know nothing of reservations"
    assert scheduler.bind(pods[0], "a-00") in (RESERVED_FOR_GROUP.message, TOO_SMALL.message)


@pytest.mark.parametrize("size", [4, 6])
def test_wherever_a_gang_is_sent_another_groups_reservation_stays(size: int) -> None:
    """Two trays have four free GPUs each, and a pair is to come. Six members leave room for it if
    four of them go to one tray, and not if three go to each: so they are not sent to both."""
    scheduler = Scheduler({"a": 3})
    assert scheduler.bind(member("b0", "other", 2, 2), "a-02") == ""
    assert scheduler.bind(pod(2, name="plain", uid="plain"), "a-02") == ""
    pods = [member(f"g{i}", "", size, 1, labels={LABEL: "g"}) for i in range(size)]
    passing = [scheduler.passing(each) for each in pods]
    assert passing == [["a-01"] if size == 4 else []] * size
    if size == 4:
        assert [scheduler.bind(each, "a-01") for each in pods] == [""] * 4
        assert scheduler.bind(member("b1", "other", 2, 2), "a-00") == ""


def test_a_gang_that_is_bound_in_part_needs_no_gpus_for_later_members() -> None:
    """A member is deleted by force before the last bind: there is a place for the last member, and
    none for who will be created in place of the deleted one."""
    scheduler = Scheduler({"a": 1})
    pods = [member(f"g{i}", "", 4, 1, labels={LABEL: "g"}) for i in range(4)]
    for each in pods:
        assert scheduler.passing(each) == rack("a", 1)
    assert [scheduler.bind(each, "a-00") for each in pods[:3]] == [""] * 3
    scheduler.cluster.drop_pod(PodUid("uid-g0"), 9)
    assert scheduler.bind(pods[3], "a-00") == ""


def test_a_gang_goes_to_one_rack_whichever_nodes_the_scheduler_offers() -> None:
    """By the scheduler's count rack a is full after two members: it has heard of pods that we have
    not. Who is asked next is not sent to another rack; in the next cycle, a moment later, all are.
    """
    scheduler, now = Scheduler({"a": 1, "b": 2}), [0.0]
    scheduler.cluster.clock = lambda: now[0]
    pods = [member(f"g{i}", "", 4, 1, labels={LABEL: "g"}) for i in range(4)]

    def cycle() -> list[set[str]]:
        """The racks that each member may go to; a is offered to the first two of them alone."""
        offered = [scheduler.names] * 2 + [rack("b", 2)] * 2
        found = [scheduler.filter(*each) for each in zip(pods, offered, strict=True)]
        return [{name[0] for name in each.node_names or ()} for each in found]

    assert cycle() == [{"a"}, {"a"}, set(), set()]
    now[0] = QUIET
    assert cycle() == [{"b"}] * 4
    assert [scheduler.bind(each, "b-00") for each in pods] == [""] * 4


@pytest.mark.parametrize("first", [True, False], ids=["before the cycle", "in the midst of it"])
def test_no_call_about_another_pod_sends_a_gang_to_two_racks(*, first: bool) -> None:
    """A dry run, or a second scheduler, asks about members, offered racks of its own liking."""
    scheduler, rng = Scheduler({"a": 2, "b": 2, "c": 3}), random.Random(first)
    now = [0.0]
    scheduler.cluster.clock = lambda: now[0]
    pods = [member(f"g{i}", "", 8, 1, labels={LABEL: "g"}) for i in range(8)]

    def other_pods() -> None:
        for asked in rng.choices(pods, k=3):
            scheduler.filter(asked, rng.choice([rack("a", 2), rack("b", 2), rack("c", 3)]))
            victims: dict[str, MetaVictims | None] = {"b-00": MetaVictims([MetaPod("x")], 0)}
            preempt(
                scheduler.cluster,
                PreemptionArgs(msgspec.convert(asked, Pod), meta_victims=victims),
            )

    sent: set[str] = set()
    for asked in pods:
        if first is (asked is pods[0]) or not first:
            other_pods()
        sent |= {name[0] for name in scheduler.passing(asked)}
        now[0] += 0.2
    assert len(sent) == 1
    for i, asked in enumerate(pods):
        assert scheduler.bind(asked, f"{min(sent)}-0{i % 2}") == ""


def test_a_gang_that_may_go_to_any_domain_takes_no_reservation() -> None:
    """A tray has room for what another group waits for and for two more, another one is empty."""
    for size, passing in ((2, ["a-01", "b-00"]), (3, ["b-00"]), (0, ["b-00"])):
        scheduler = Scheduler({"a": 2, "b": 1})
        assert scheduler.bind(member("b0", "other", 3, 1), "a-00") == ""
        assert scheduler.bind(pod(3, name="plain", uid="plain"), "a-00") == ""
        pods = [gang(f"g{i}", size, 1) for i in range(size or 3)]
        assert [scheduler.passing(each) for each in pods] == [passing] * len(pods)
        for each in pods:
            assert scheduler.bind(each, passing[0]) == ""
        for i in (1, 2):
            assert scheduler.bind(member(f"b{i}", "other", 3, 1), "a-01") == ""


def test_a_gang_that_only_prefers_is_excluded_from_no_node() -> None:
    scheduler = Scheduler({"a": 2})
    assert scheduler.bind(member("b0", "other", 2, 4), "a-00") == ""
    assert scheduler.passing(gang("g0", 2, 1, policy="preferred")) == ["a-01"]
    assert scheduler.passing(gang("g0", 2, 1)) == []


@pytest.mark.parametrize("given", [None, 4, 3])
def test_peers_that_the_scheduler_would_send_beyond_our_count_may_come(
    given: int | None,
) -> None:
    """The kubelet gives out three of four GPUs. Until the node's status says so kube-scheduler
    sends four members."""
    scheduler = Scheduler({})
    node = machine("gb200-tray").topology("a-00", group="a")
    scheduler.names.append(node.name)
    healthy = frozenset(DeviceId(gpu.uuid) for gpu in node.gpus[:3])
    scheduler.cluster.put_record(node, Report("boot", 1, allocatable=healthy))

    def gives_out(count: int | None) -> None:
        known = None if count is None else amounts_of({"nvidia.com/gpu": count})
        scheduler.cluster.put_node(node.name, NodeObject(allocatable=known))

    pods = [gang(f"g{i}", 4, 1) for i in range(4)]
    gives_out(given)
    passing = [] if given == 4 else ["a-00"]
    assert [scheduler.passing(each) for each in pods] == [passing] * 4
    gives_out(3)
    assert [scheduler.passing(each) for each in pods] == [["a-00"]] * 4
