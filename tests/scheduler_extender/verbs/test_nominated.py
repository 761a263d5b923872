"""A place is reserved for a pod that kube-scheduler has nominated, from pods of no higher priority.

kube-scheduler evicts others for a pod, nominates it, and tries it again when they are gone. Until
then it counts as many GPUs for it against others, and not which: of three free ones that are left
for two pods it lets a single have one of the bridged pair.
"""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import yaml

from scheduler_extender import verbs
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.explain.gpustates import Nodes, Use
from scheduler_extender.explain.groupfit import judge
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.files.podfile import read_all
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.reservation import MOST_RESERVATIONS, Reservation
from scheduler_extender.web.pages import Pages
from scheduler_extender.wire import BindingArgs, Pod
from tests.dranodes import NODE as DRA_NODE
from tests.dranodes import DraWorld, two_pairs
from tests.nodes import last_report, pod, record_of
from tests.scheduler_extender.binding import bind_error
from tests.scheduler_extender.evictions.scenes import Held, cluster_of
from topology.core.devices import NodeName, PodUid
from topology.core.report import Report
from topology.machines import machine

NODE = NodeName("pairs")
REASON = "reserved for another pod until kube-scheduler has bound the pod"
PRIORITY = 10


@pytest.fixture
def cluster() -> Cache:
    """Two bridged pairs. One GPU is held by a pod that is there to stay, one by the victim."""
    node = machine("a100-pcie-4-bridged").topology(NODE)
    return cluster_of({node: {"stays": Held((0,)), "victim": Held((2,))}})


def manifest(
    uid: str, count: int, priority: int, *, link: bool = False, nominated: str | None = None
) -> Pod:
    found = pod(count, {"link": "nvlink"} if link else None, name=uid, uid=uid)
    found["spec"]["priority"] = priority
    if nominated is not None:
        found["status"]["nominatedNodeName"] = nominated
    return msgspec.convert(found, Pod)


def see(cluster: Cache, found: Pod) -> PodRecord:
    record = record_of(found)
    cluster.put_pod(record)
    return record


def nominate(cluster: Cache, uid: str = "wants", priority: int = PRIORITY) -> Pod:
    found = manifest(uid, 2, priority, link=True, nominated=NODE)
    see(cluster, found)
    return found


def gone(cluster: Cache, uid: str) -> None:
    """A pod is gone, and a report shows that its GPU is free."""
    cluster.drop_pod(PodUid(uid))
    report = last_report(cluster.node_info(NODE))
    left = tuple(a for a in report.allocations if a.pod_uid != uid)
    cluster.put_report(NODE, Report("boot", report.sequence + 1, allocations=left))


def refusal(cluster: Cache, asked: Pod) -> str:
    """Why filter refuses the pod; empty where it passes."""
    found = verbs.filter_nodes(cluster, asked, [NODE])
    return {**found.failed, **found.unresolvable}.get(NODE, "")


def refused_bind(cluster: Cache, asked: Pod, node: NodeName = NODE) -> str:
    see(cluster, asked)
    uid, meta = asked.metadata.uid, asked.metadata
    args = BindingArgs(meta.name, meta.namespace, uid, node)
    return bind_error(cluster, FileBinder(cluster), args)


@pytest.mark.parametrize(
    ("priority", "reason"),
    [
        pytest.param(0, REASON, id="lower"),
        pytest.param(PRIORITY, REASON, id="equal"),
        pytest.param(PRIORITY + 1, "", id="higher"),
    ],
)
@pytest.mark.parametrize("ask", [refusal, refused_bind])
def test_the_reservation_of_a_nominated_pod_yields_to_higher_priority_alone(
    cluster: Cache, ask: Callable[[Cache, Pod], str], priority: int, reason: str
) -> None:
    nominate(cluster)
    gone(cluster, "victim")
    assert ask(cluster, manifest("single", 1, priority)) == reason


def test_the_pod_itself_gets_its_reservation(cluster: Cache) -> None:
    wants = nominate(cluster)
    gone(cluster, "victim")
    assert refusal(cluster, wants) == ""
    rows = verbs.prioritize(cluster, wants, [NODE, "unknown"])
    assert {row.host: row.score for row in rows}[NODE] == 10
    assert refused_bind(cluster, wants) == ""
    # Now it is a promise like any other, and the third GPU is nobody's.
    assert not cluster.snapshot().reserved_nodes(PodUid("wants"))


@pytest.mark.parametrize("change", ["nominated elsewhere", "given up", "deleted"])
def test_a_pod_that_does_not_come_reserves_nothing(cluster: Cache, change: str) -> None:
    nominate(cluster)
    gone(cluster, "victim")
    single = manifest("single", 1, 0)
    assert refusal(cluster, single) == REASON
    if change == "deleted":
        cluster.drop_pod(PodUid("wants"))
    else:
        elsewhere = "other" if change == "nominated elsewhere" else None
        see(cluster, manifest("wants", 2, PRIORITY, link=True, nominated=elsewhere))
    assert refusal(cluster, single) == ""


def test_a_nominated_pod_that_does_not_fit_reserves_nothing(cluster: Cache) -> None:
    """As while the node has not reported: nothing says for how long that would be."""
    nominate(cluster)
    gone(cluster, "victim")
    topology = cluster.node_info(NODE).topology
    assert topology is not None
    cluster.put_record(topology, None)
    assert refusal(cluster, manifest("single", 1, 0)) == ""


def test_of_two_nominated_pods_the_one_of_higher_priority_has_the_reservation(
    cluster: Cache,
) -> None:
    first, second = nominate(cluster, "first", 5), nominate(cluster, "second", 7)
    gone(cluster, "victim")
    assert refusal(cluster, first) == REASON
    assert refusal(cluster, second) == ""


def test_a_pod_with_a_reservation_and_a_nomination_elsewhere_has_both(cluster: Cache) -> None:
    """A person evicted for it on one node, and kube-scheduler then on another one."""
    other = machine("a100-pcie-4-bridged").topology("other")
    cluster.put_record(other, Report("boot", 1))
    gone(cluster, "victim")
    kept = Reservation(NODE, cluster.today() + 600.0, frozenset({PodUid("victim")}))
    asked = manifest("wants", 2, PRIORITY, link=True, nominated="other")
    cluster.put_pod(replace(see(cluster, asked), reservation=kept))
    both = [NODE, "other"]
    assert cluster.snapshot().reserved_nodes(PodUid("wants")) == set(both)
    assert set(verbs.filter_nodes(cluster, asked, both).node_names or ()) == set(both)
    assert {row.score for row in verbs.prioritize(cluster, asked, both)} == {10}
    assert "reserved for another pod" in refusal(cluster, manifest("single", 1, 0))
    assert {pod.uid for pod in cluster.snapshot().reservations.values()} == {"wants"}
    answer = eviction_advice(cluster, asked.metadata.namespace, "wants")
    assert answer is not None
    assert answer.reservation is not None
    assert answer.reservation.node == NODE


def test_commands_say_what_filter_says_of_a_reservation_that_yields(cluster: Cache) -> None:
    nominate(cluster)
    gone(cluster, "victim")
    for priority, takes in ((PRIORITY, False), (PRIORITY + 1, True)):
        single = see(cluster, manifest("single", 1, priority))
        (answer,) = answers_to(cluster.snapshot(), single)
        assert answer.passes is takes


@pytest.mark.parametrize("higher", [False, True], ids=["equal", "higher"])
def test_the_reservation_yields_to_a_pod_of_a_file_by_its_priority(
    cluster: Cache, higher: bool
) -> None:
    """As to one that kube-scheduler asks about: check, and the what-if box of the map."""
    nominate(cluster)
    gone(cluster, "victim")
    given = {"kind": "Pod", **pod(1, name="mine")}
    given["spec"]["priority"] = PRIORITY + higher
    text = yaml.safe_dump(given)
    assert (REASON in Pages(cluster).what_if(text)) is not higher
    assert judge(cluster, read_all(text)).all_may_come is higher


@pytest.mark.parametrize(("nominees", "passes"), [((), False), ((1,), True), ((1, 1), False)])
def test_under_dra_devices_are_chosen_already_for_those_nominated(
    nominees: tuple[int, ...], passes: bool
) -> None:
    """The GPUs come in the order 3, 1, 0, 2: a pair comes after one more GPU alone."""
    world = two_pairs()
    for at, count in enumerate(nominees):
        see(world.cluster, manifest(f"nominee-{at}", count, -at, nominated=DRA_NODE))
    assert passes_there(world) == passes


def test_under_dra_a_nominated_pod_is_not_in_its_own_way() -> None:
    world = two_pairs()
    asks = manifest("p", 3, 0, nominated=DRA_NODE)
    see(world.cluster, asks)
    assert verbs.filter_nodes(world.cluster, asks, [DRA_NODE]).node_names == [DRA_NODE]
    assert not refused_bind(world.cluster, asks, DRA_NODE)


def test_under_dra_the_devices_chosen_for_a_nominated_pod_are_shown_as_its_own() -> None:
    world = two_pairs()
    see(world.cluster, manifest("p", 1, 0, nominated=DRA_NODE))
    (node,) = Nodes(world.cluster).all()
    holders = [[each.name for each in gpu.holders] for gpu in node.gpus]
    assert holders == [[], [], [], ["default/p"]]
    assert node.uses[Use.SICK] == 0


def test_under_dra_a_nominated_pod_stands_in_a_cluster_file_once() -> None:
    world = two_pairs()
    see(world.cluster, manifest("p", 1, 0, nominated=DRA_NODE))
    written = yaml.safe_load_all(b"".join(cluster_file(world.cluster)))
    (found,) = (each for each in written if each["kind"] == "Pod")
    assert "nodeName" not in found["spec"]
    assert found["status"]["nominatedNodeName"] == DRA_NODE


def passes_there(world: DraWorld) -> bool:
    asks = manifest("asks", 2, PRIORITY, link=True)
    return bool(verbs.filter_nodes(world.cluster, asks, [DRA_NODE]).node_names)


@pytest.mark.parametrize("priorities", [(9, 8), (8, 9), (9, 9)])
def test_of_two_nominated_pods_neither_waits_for_the_other(priorities: tuple[int, int]) -> None:
    """Each goes to the node, whichever comes first, and the pair has its link."""
    node = machine("a100-pcie-4-bridged").topology(NODE)
    for order in (1, -1):
        cluster = cluster_of({node: {}})
        both = [
            manifest("a-single", 1, priorities[0], nominated=NODE),
            manifest("pair", 2, priorities[1], link=True, nominated=NODE),
        ]
        binder = FileBinder(cluster)
        for each in both:
            binder.saw(each)
        for each in both[::order]:
            assert verbs.filter_nodes(cluster, each, [NODE]).node_names == [NODE]
            meta = each.metadata
            args = BindingArgs(meta.name, meta.namespace, meta.uid, NODE)
            assert bind_error(cluster, binder, args) == ""


def test_the_first_eight_nominated_pods_have_a_reservation_behind_an_annotated_one() -> None:
    cluster = cluster_of({machine("a100-pcie-4-bridged").topology(NODE): {}})
    for number in range(10):
        cluster.put_pod(record_of(manifest(f"p{number}", 1, 9, nominated=NODE)))
    assert [each.uid for each in cluster.node_info(NODE).reservations] == [
        f"p{number}" for number in range(MOST_RESERVATIONS)
    ]
    annotated = replace(
        record_of(manifest("annotated", 2, 0, link=True)),
        reservation=Reservation(NODE, cluster.today() + 60.0),
    )
    cluster.put_pod(annotated)
    found = cluster.node_info(NODE).reservations
    assert found[0].uid == "annotated"
    assert len(found) == 1 + MOST_RESERVATIONS
