"""Why a pod waits: what is nearest, what would help, and what a placed pod got."""

import random
import re
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.explain.explanation import Explanation, explanation_of
from scheduler_extender.explain.groupfit import Wanted, judge
from scheduler_extender.explain.placedpod import Written, placed_on
from scheduler_extender.explain.remedies import Help, relaxations
from scheduler_extender.framework import equivalence
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.groupreference import Group, GroupReference
from scheduler_extender.state.answers.decision import Decision, Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import SchedulingAttributes
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Taint
from tests.deadlines import ending_when
from tests.dranodes import two_pairs
from tests.nodes import bridged, last_report, pcie, switched
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from topology.core.devices import MIB, Bytes, DeviceId, GpuResource, NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.placement import SICK, Reason
from topology.core.report import Allocation, Health, MissingGpu, Report
from topology.core.requests import Constraints, GpuRequest, Pattern, Policy, gpu_request
from topology.machines import machine
from topology.machines.mig import cut

TODAY = 100.0 + 3 * 3600  # three hours after the pods of the scenes have started
DGX = machine("dgx1-v100").topology("train-07")
QUAD = waiting("train", gpu_request(4, NVLINKED))


def explained(cluster: Cache, pod: PodRecord) -> Explanation:
    cluster.today = lambda: TODAY
    cluster.put_pod(pod)
    found = explanation_of(cluster.snapshot(), pod)
    assert isinstance(found, Explanation)
    return found


def near(found: Explanation) -> dict[str, str]:
    return {each.node: each.words for each in found.nearest}


def ends(found: Explanation) -> list[Help]:
    return [each for each in found.helps if each.kind == "end"]


def relaxed(found: Explanation) -> dict[str | None, tuple[str | None, int]]:
    return {each.key: (each.value, each.nodes) for each in found.helps if each.kind == "relax"}


def test_nodes_are_counted_by_reason_and_the_nearest_names_the_pods_in_the_way() -> None:
    busy = {name: Held((i,)) for i, name in enumerate("abcdefgh")}
    cluster = cluster_of(
        {
            DGX: {"one": Held((0,)), "two": Held((5, 6))},
            machine("dgx1-v100").topology("full"): busy,
            pcie(8, "no-links"): {},
            switched(2, "small"): {},
        }
    )
    cluster.put_record(switched(4, "silent"), None)
    found = explained(cluster, QUAD)
    assert found.takes == 0
    assert found.rejections == {
        Reason.SCATTERED.value: 1,
        Reason.BUSY.value: 1,
        Reason.LINKS.value: 1,
        Reason.TOO_FEW.value: 1,
        Reason.NO_REPORT.value: 1,
    }
    assert "; no topology report (1 node)" in found.headline
    # On a DGX-1V the linked quads are 0-3, 4-7 and those across: three of four are free at best.
    assert near(found)["train-07"] == (
        "3 of 4 linked GPUs are free (1, 2, 3); GPU 0 is held by team/one for 3 h"
    )
    assert near(found)["full"].startswith("0 of 4 linked GPUs are free; ")


def test_what_all_nodes_of_a_kind_say_is_reported_and_else_what_they_have_in_common() -> None:
    silent = (MissingGpu("GPU 2", counted=True),)
    cluster = cluster_of({})
    for name in "ab":
        config = replace(pcie(4).allocator, plugin_version="0.19.3")
        node = replace(pcie(4, name), allocator=config)
        cluster.put_record(node, Report("boot", 1, missing=silent))
    found = explained(cluster, waiting("one", gpu_request(1)))
    (message,) = {row.message for row in found.nodes}
    assert "refuses every pod with whole GPUs while GPU 2 does not answer" in message
    assert found.headline == f"no node takes it: {message} (2 nodes)"
    cluster.put_record(pcie(4, "c"), Report("boot", 1))
    zone = replace(
        waiting("member", gpu_request(1)), group_ref=GroupReference(Group("t", "g"), 2, "z")
    )
    found = explained(cluster, zone)
    assert "; no node has the label z of group-domain" in found.headline
    other = Report("boot", 2, missing=(replace(silent[0], name="GPU 3"),))
    cluster.put_record(replace(node, name=NodeName("b")), other)
    assert "2 nodes have a kubelet that may refuse the pod" in explained(cluster, zone).headline


def test_the_end_of_one_pod_is_tried_and_of_several_only_those_that_matter() -> None:
    cluster = cluster_of({DGX: {"one": Held((0,)), "two": Held((5, 6))}})
    found = explained(cluster, QUAD)
    assert [help_.pods for help_ in ends(found)] == [["team/one"]]
    info = cluster.node_info(NodeName("train-07")).without(frozenset({PodUid("one")}))
    cluster = cluster_of({DGX: {f"h{i}": Held((i,)) for i in range(8)}})
    (several,) = ends(explained(cluster, QUAD))
    assert len(several.pods) == 4
    assert info.name == several.node


@pytest.mark.parametrize("seed", range(30))
def test_what_is_nearest_and_what_would_help_name_the_same_pods(seed: int) -> None:
    rng = random.Random(seed)
    free, held = list(range(8)), dict[str, Held]()
    rng.shuffle(free)
    while len(free) > 1:
        held[f"p{len(held)}"] = Held(
            tuple(free.pop() for _ in range(min(len(free), rng.randint(1, 3))))
        )
    found = explained(cluster_of({DGX: held}), waiting("w", gpu_request(2, NVLINKED)))
    (help_,) = ends(found)
    assert set(re.findall(r"team/\w+", near(found)["train-07"])) == set(help_.pods)


def test_nodes_with_the_same_message_are_listed_once() -> None:
    held = {"one": Held((0,))}
    cluster = cluster_of(
        {bridged(4, name): held if name == "a" else {} for name in "abcd"}
        | {pcie(8, "no-links"): {}, switched(2, "small"): {}}
    )
    found = explained(cluster, QUAD)
    assert near(found) == {"a": "at most 2 of its GPUs are linked this way, such as GPUs 0,1"}


def test_the_nearest_set_says_what_is_sick_and_what_no_pod_holds() -> None:
    node = switched(4, "node")
    cluster = Cache(lambda: 0.0)
    sick = Health(node.gpus[1].uuid, healthy=False, reason="Xid94")
    cluster.put_record(node, Report("boot", 1, health=(sick,)))
    found = explained(cluster, QUAD)
    assert near(found)["node"] == "3 of 4 linked GPUs are free (0, 2, 3); GPU 1 is sick"


def test_a_sick_gpu_that_may_come_is_named_alike_to_all() -> None:
    node = switched(4, "node")
    cluster = cluster_of({})
    sick = Health(node.gpus[1].uuid, healthy=False, reason="Xid94")
    cluster.put_record(node, Report("boot", 1, health=(sick,)))
    pod = waiting("one", gpu_request(1))
    words = "may hand out GPU 1, which is sick"
    found = explained(cluster, pod)
    assert (found.takes, found.doubts) == (1, {Reason.SICK.value: 1})
    assert found.headline == (
        f"1 of 1 node would take it (0 with a promise); without a promise: {words} (1 node)"
    )
    (row,) = found.nodes
    assert (row.verdict, row.note) == ("not-guaranteed", words)
    (checked,) = judge(cluster, [Wanted("one", gpu_request(1))]).judged
    assert [each.note for each in checked.answers] == [words]
    plan = eviction_advice(cluster, pod.namespace, pod.name)
    assert plan is not None
    assert plan.takes is None
    assert plan.text == [f"no pod is worth evicting for team/one: node would take it, but {words}"]
    # Who requires something is refused for it, in filter's words, and not for what it requires.
    (strict,) = explained(cluster, waiting("strict", gpu_request(1, NVLINKED))).nodes
    assert strict.message == SICK.message


def test_a_sick_gpu_that_cannot_come_is_no_doubt() -> None:
    node = switched(4, "node")
    cluster = cluster_of({node: {"one": Held((1,))}})
    report = last_report(cluster.node_info(NodeName("node")))
    sick = Health(node.gpus[1].uuid, healthy=False, reason="Xid94")
    cluster.put_record(node, replace(report, sequence=2, health=(sick,)))
    found = explained(cluster, waiting("two", gpu_request(1)))
    assert (found.headline, found.doubts) == ("1 of 1 node would take it", {})
    assert [row.verdict for row in found.nodes] == ["guaranteed"]


def test_a_free_set_that_may_not_come_says_why() -> None:
    cluster = cluster_of({bridged(4, "node"): {}})
    unseen = replace(waiting("unseen", gpu_request(1)), node=NodeName("node"))
    cluster.put_pod(unseen)
    found = explained(cluster, waiting("pair", gpu_request(2, NVLINKED)))
    assert near(found)["node"] == (
        "GPUs 0,1 are suitable and seem free, but team/unseen may get them first: no report "
        "shows that "
        "pod yet"
    )
    cluster.put_pod(replace(unseen, phase="Running"))
    found = explained(cluster, waiting("pair", gpu_request(2, NVLINKED)))
    assert "no report shows yet which GPUs team/unseen will get" in near(found)["node"]


def test_a_free_set_that_is_not_next_under_dra_can_be_named_by_a_claim() -> None:
    found = explained(two_pairs().cluster, waiting("pair", gpu_request(2, NVLINKED)))
    assert near(found)["node"] == (
        "GPUs 0,1 are suitable and seem free, but kube-scheduler takes others first: a claim "
        "can name "
        "them (gpu-topology claim)"
    )


def test_the_largest_linked_set_is_named_where_none_is_large_enough() -> None:
    cluster = cluster_of({machine("a100-pcie-4-bridged").topology("node"): {}})
    found = explained(cluster, QUAD)
    assert near(found) == {"node": "at most 2 of its GPUs are linked this way, such as GPUs 0,1"}
    assert relaxed(found)["count"] == ("2", 1)
    assert not found.unblocks, "no eviction changes the hardware"


def test_each_key_is_loosened_by_the_least_that_helps() -> None:
    small = switched(4, "small")
    cluster = cluster_of({small: {}})
    have = small.gpus[0].memory
    asks = Constraints(LinkKind.NVLINK, min_gpu_memory=Bytes(have + MIB), min_nvlinks=12)
    found = explained(cluster, waiting("pair", gpu_request(2, asks)))
    assert relaxed(found) == {"min-gpu-memory": ("40Gi", 1), "policy": ("preferred", 1)}
    asks = Constraints(LinkKind.NVLINK, min_nvlinks=18)
    found = explained(cluster, waiting("pair", gpu_request(2, asks)))
    assert relaxed(found)["min-nvlinks"] == ("12", 1)
    cluster = cluster_of({pcie(4, "pcie"): {}})
    found = explained(cluster, waiting("pair", gpu_request(2, NVLINKED)))
    assert relaxed(found)["link"] == ("node", 1)


def test_a_looser_request_never_asks_for_more() -> None:
    """Where a node takes the pod as it is, it takes every loosened one, too."""
    asks = Constraints(
        LinkKind.NVLINK,
        min_nvlinks=4,
        min_gpu_memory=Bytes(16 * 1024 * MIB),
        models=("*a100*",),
        pattern=Pattern.PAIRWISE,
    )
    cluster = cluster_of({switched(4, "node"): {}})
    request = gpu_request(2, asks)
    assert explained(cluster, waiting("as-is", request)).takes == 1
    tried = [one for values in relaxations(request, [switched(4, "node")]) for one in values]
    assert {one.key for one in tried} == {
        "link", "min-nvlinks", "shape", "min-gpu-memory", "gpu-model", "count",
        "policy",
    }  # fmt: skip
    for one in tried:
        assert one.request != request
        assert explained(cluster, waiting(one.words, one.request)).takes == 1, one.words


def test_remedies_are_tried_only_for_pods_that_wait() -> None:
    cluster = cluster_of({switched(4, "node"): {"there": Held((0, 1), constraints=NVLINKED)}})
    found = explained(cluster, waiting("pair", gpu_request(2, NVLINKED)))
    assert (found.takes, list(found.helps), found.unblocks) == (1, [], False)
    assert found.headline == "1 of 1 node would take it"


def test_trying_ends_when_its_time_is_up() -> None:
    cluster = cluster_of({DGX: {"one": Held((0,)), "two": Held((5, 6))}})
    cluster.put_pod(QUAD)
    seen = cluster.snapshot()
    for looks in count():
        times = iter([False] * looks)
        found = explanation_of(seen, QUAD, deadline=ending_when(partial(next, times, True)))
        assert isinstance(found, Explanation)
        if found.evaluated:
            break
        assert found.rejections == {Reason.UNDECIDED.value: 1} or looks > 1
        assert (found.whole, list(found.helps)) == (False, [])
        assert found.headline.startswith(
            "not all nodes were evaluated in time; so far no node takes it: "
        )
    assert isinstance(found, Explanation)
    assert (found.whole, list(found.helps)) == (False, [])
    assert found.rejections == {Reason.SCATTERED.value: 1}


def test_no_node_is_asked_about_a_relaxed_request_once_it_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of many nodes may take long: one that is late ends the trying, not only the last one."""
    nodes = {machine("dgx1-v100").topology(f"n{n}"): {f"p{n}": Held((n,))} for n in range(8)}
    cluster = cluster_of(nodes)
    pod = waiting("train", gpu_request(8, NVLINKED))
    cluster.put_pod(pod)
    asked: list[GpuRequest] = []

    def slow(info: NodeInfo, request: GpuRequest, settings: Settings) -> Decision:
        asked.append(request)
        return decide(info, request, settings)

    monkeypatch.setattr(equivalence, "decide", slow)
    seen = cluster.snapshot()
    explanation_of(seen, pod)
    whole = len(asked)
    asked.clear()
    found = explanation_of(seen, pod, deadline=ending_when(lambda: len(asked) > whole // 2))
    assert isinstance(found, Explanation)
    assert not found.whole
    assert len(asked) == whole // 2 + 1


@pytest.mark.parametrize(("priority", "nodes"), [(1, 0), (2, 1)])
def test_a_reservation_that_yields_to_a_pod_is_free_for_what_it_may_ask_instead(
    priority: int, nodes: int
) -> None:
    cluster = cluster_of({DGX: {}})
    nominated = SchedulingAttributes(nominated=DGX.name, priority=1)
    cluster.put_pod(replace(waiting("low", gpu_request(2, NVLINKED)), attributes=nominated))
    asks = gpu_request(8, Constraints(models=("h100",)))
    pod = replace(waiting("train", asks), attributes=SchedulingAttributes(priority=priority))
    relaxing = relaxed(explained(cluster, pod))
    assert sum(count for _, count in relaxing.values()) == nodes * len(relaxing)
    assert bool(relaxing) == bool(nodes)


def test_members_of_a_group_are_loosened_within_their_group() -> None:
    """No node has the label of the group's domain: nothing about GPUs would help."""
    cluster = cluster_of({pcie(4, "pcie"): {}})
    rack = GroupReference(Group("team", "g"), 2, "rack")
    pod = replace(waiting("pair", gpu_request(2, NVLINKED)), group_ref=rack)
    assert set(relaxed(explained(cluster, pod))) == {"policy"}


def test_unblock_names_a_node_on_which_the_pod_is_expected_to_get_its_gpus() -> None:
    """Filter lets the pod pass there, so no eviction is needed."""
    node = bridged(4, "node")
    unknown = replace(node, allocator=replace(node.allocator, policy="any"))
    cluster = cluster_of({unknown: {"x": Held((2, 3))}})
    pod = waiting("pair", gpu_request(2, NVLINKED))
    cluster.put_pod(pod)
    assert explained(cluster, pod).takes == 1
    found = eviction_advice(cluster, pod.namespace, pod.name)
    assert found is not None
    first, second = found.text
    assert first == "node has GPUs for team/pair now, with the verdict expected"
    assert second.startswith("no pod is worth evicting for team/pair: ")


# --- Placed ---------------------------------------------------------------------------------------


def test_a_placed_pod_reads_its_promise_and_whether_its_gpus_keep_it() -> None:
    cluster = cluster_of({bridged(4, "node"): {"pair": Held((0, 1), constraints=NVLINKED)}})
    (pod,) = cluster.node_info(NodeName("node")).pods.bound.alive.values()
    written = Written("guaranteed", "node", "pair", [[0, 1], [2, 3]])
    found = placed_on(cluster.node_info(NodeName("node")), pod, written)
    assert (found.got, found.keeps, found.faults) == ([0, 1], True, [])
    assert found.words == [
        "on node, its constraints were guaranteed when it was bound",
        "possible GPUs when it was bound: 0,1 | 2,3",
        "it got GPUs 0,1, which meet its constraints",
    ]
    broken = cluster_of({bridged(4, "node"): {"pair": Held((1, 2), constraints=NVLINKED)}})
    found = placed_on(broken.node_info(NodeName("node")), pod, written)
    assert (found.got, found.keeps) == ([1, 2], False)
    assert found.words[2:] == [
        "it got GPUs 1,2, which do not meet link=nvlink",
        "these are not among the predicted GPUs",
    ]
    assert found.faults == found.words[2:]
    one = cluster_of({bridged(4, "node"): {"pair": Held((1,), constraints=NVLINKED)}})
    found = placed_on(one.node_info(NodeName("node")), pod, None)
    assert found.words[1:] == ["it got GPU 1, which does not meet link=nvlink"]


def test_a_pod_that_no_report_shows_has_no_gpus_yet() -> None:
    cluster = cluster_of({bridged(4, "node"): {}})
    pod = replace(waiting("pair", gpu_request(2, NVLINKED)), node=NodeName("node"))
    found = explained(cluster, pod)
    assert found.placed is not None
    assert (found.placed.got, found.placed.keeps, found.nearest) == (None, None, [])
    assert found.headline == "on node, bound without the extender: nothing was promised"


# --- Words that were wrong ------------------------------------------------------------------------


def test_whole_gpus_beside_mig_that_will_never_be_are_never() -> None:
    """Two of four GPUs are split: no end of a pod makes three whole ones."""
    node = cut(switched(4, "node"), ["1g.5gb"] * 7, gpus=[0, 1])
    cluster = cluster_of({node: {}})
    for request in (
        gpu_request(3),
        gpu_request(3, NVLINKED),
        gpu_request(3, NVLINKED, Policy.PREFERRED),
    ):
        (row,) = explained(cluster, waiting("p", request)).nodes
        assert (row.verdict, row.reason) == ("never", Reason.SPLIT_BY_MIG.value), request.text
    assert explained(cluster, waiting("p", gpu_request(2))).takes == 1


def test_shares_and_instances_are_called_so() -> None:
    shares = GpuResource("nvidia.com/gpu", "time-slicing", 2)
    shared = replace(pcie(1, "shared"), resources=(shares,))
    cluster = Cache(lambda: 0.0)
    held = tuple(
        Allocation(
            PodUid(f"u{i}"), "team", f"p{i}", "main", shares.name, (DeviceId(f"GPU-0::{i}"),)
        )
        for i in range(2)
    )
    cluster.put_record(shared, Report("boot", 1, allocations=held))
    (row,) = explained(cluster, waiting("p", gpu_request(1))).nodes
    assert row.message == "not enough free GPU shares"
    assert row.miss is not None
    assert row.miss.words == "0 of 1 GPU share is free; others are held by team/p0 and team/p1"
    (row,) = explained(cluster, waiting("p", gpu_request(3))).nodes
    assert row.message == "node has fewer GPU shares than requested"
    node = cut(switched(4, "node"), ["3g.20gb"], gpus=[0])
    (row,) = explained(
        cluster_of({node: {}}), waiting("p", gpu_request(2, resource="nvidia.com/mig-3g.20gb"))
    ).nodes
    assert row.message == "node has fewer MIG instances than requested"


def test_nodes_that_kube_scheduler_will_not_choose_are_distinguished() -> None:
    cluster = cluster_of({switched(2, "open"): {}, switched(2, "tainted"): {}})
    cluster.put_node(NodeName("open"), NodeObject())
    cluster.put_node(NodeName("tainted"), NodeObject(taints=(Taint("gpu", "", "NoSchedule"),)))
    pod = waiting("pair", gpu_request(2, NVLINKED))
    found = explained(cluster, pod)
    assert (found.takes, found.ineligible) == (2, 1)
    assert found.headline == (
        "2 of 2 nodes would take it, but 1 of them is not eligible because of taint gpu:NoSchedule"
    )
    (note,) = found.notes
    assert "kube-scheduler has found no node for it" in note
    assert not explained(cluster, replace(pod, called_unschedulable=False)).notes


def test_remedies_are_named_only_on_eligible_nodes() -> None:
    cluster = cluster_of({switched(4, "tainted"): {"one": Held((0,))}, pcie(4, "cordoned"): {}})
    cluster.put_node(NodeName("tainted"), NodeObject(taints=(Taint("gpu", "", "NoSchedule"),)))
    cluster.put_node(NodeName("cordoned"), NodeObject(cordoned=True))
    found = explained(cluster, QUAD)
    assert found.takes == 0
    assert not found.helps, "kube-scheduler would send the pod there in no case"
    assert not found.unblocks
    cluster.put_node(NodeName("cordoned"), NodeObject())
    assert relaxed(explained(cluster, QUAD))["link"] == ("node", 1)


def test_a_pod_that_fits_on_ineligible_nodes_only_reads_what_would_help_elsewhere() -> None:
    cluster = cluster_of({switched(4, "closed"): {}, switched(4, "open"): {"one": Held((0,))}})
    cluster.put_node(NodeName("closed"), NodeObject(cordoned=True))
    cluster.put_node(NodeName("open"), NodeObject())
    found = explained(cluster, QUAD)
    assert (found.takes, found.ineligible) == (1, 1)
    assert [each.pods for each in ends(found)] == [["team/one"]]
    assert not found.notes, "the line above says that the node is closed"


def test_a_node_without_gpus_waits_for_no_report() -> None:
    cluster = cluster_of({pcie(2, "gpus"): {}})
    cluster.put_node(NodeName("cpus"), NodeObject(advertises_none=True))
    cluster.put_node(NodeName("new"), NodeObject())
    for request in (gpu_request(4), gpu_request(4, NVLINKED)):
        found = explained(cluster, waiting("w", request))
        answer = {str(row.node): row.reason for row in found.nodes}
        assert answer["cpus"] == Reason.NOT_SERVED.value
    assert answer["new"] == Reason.NO_REPORT.value
    assert relaxed(found)["count"] == ("1", 1)
    assert relaxed(explained(cluster, waiting("p", gpu_request(2, NVLINKED))))["policy"] == (
        "preferred",
        2,
    )
