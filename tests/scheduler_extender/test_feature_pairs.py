"""Two features at a time: groups, shared GPUs, MIG, assumed pods and evictions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import RESERVED
from scheduler_extender.deadline import within
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import SchedulingAttributes
from scheduler_extender.state.pods.reservation import Reservation, value_of
from scheduler_extender.verbs import STILL_WORKING, filter_nodes, preempt
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs
from tests.nodes import pod, record_of
from tests.scheduler_extender.state import test_mig as mig
from tests.scheduler_extender.state import test_shared_memory as shared
from tests.scheduler_extender.verbs.racks import Scheduler, member
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.core.requests import GpuRequest

TODAY, UNTIL = 43_000.0, 43_500.0
KEPT = "reserved for another pod until 12:05 UTC"
NODE = shared.NAME


def reserve(
    cluster: Cache, manifest: dict[str, Any], node: str, victims: Sequence[str] = ()
) -> dict[str, Any]:
    """The pod waits, and a place is reserved for it."""
    cluster.today = lambda: TODAY
    uid = PodUid(manifest["metadata"]["uid"])
    written = value_of(uid, NodeName(node), UNTIL, map(PodUid, victims))
    manifest["metadata"].setdefault("annotations", {})[RESERVED] = written
    cluster.put_pod(record_of(manifest))
    assert cluster.snapshot().reserved_nodes(uid) == {node}
    return manifest


def refused(cluster: Cache, manifest: Mapping[str, Any], node: str = NODE) -> str:
    """Why filter refuses a pod on a node; empty where it passes."""
    found = filter_nodes(cluster, msgspec.convert(manifest, Pod), [node])
    return {**found.failed, **found.unresolvable}.get(node, found.error)


# Reservations on shared GPUs.


@pytest.mark.parametrize("newcomer", [shared.uses(30), {}, {"policy": "preferred"}])
def test_memory_of_a_reservation_stays_free(newcomer: dict[str, str]) -> None:
    there = shared.Node(shared.node(1, 4))
    wants = reserve(there.cluster, shared.manifest("wants", 1, shared.uses(35)), NODE)
    assert refused(there.cluster, shared.manifest("other", 1, newcomer)) == KEPT
    assert refused(there.cluster, shared.manifest("small", 1, shared.uses(5))) == ""
    assert refused(there.cluster, wants) == ""


def test_a_pod_that_lacks_memory_anyway_reads_of_memory() -> None:
    there = shared.Node(shared.node(1, 4))
    reserve(there.cluster, shared.manifest("wants", 1, shared.uses(5)), NODE)
    message = refused(there.cluster, shared.manifest("other", 1, shared.uses(41)))
    assert "41Gi" in message


# Reservations of members of groups.


def test_a_reservation_for_a_member_counts_for_its_group() -> None:
    scheduler = Scheduler({"a": 2})
    assert scheduler.bind(member("m0", size=2), "a-00") == ""
    last = reserve(scheduler.cluster, member("m1", size=2), "a-01")
    assert scheduler.passing(last) == ["a-01"]
    assert scheduler.scores(last, ["a-01"])["a-01"] >= 5
    assert scheduler.bind(last, "a-01") == ""


def test_a_group_starts_beside_the_reservation_of_its_own_member() -> None:
    scheduler = Scheduler({"a": 2})
    last = reserve(scheduler.cluster, member("m1", size=2), "a-01")
    assert scheduler.passing(member("m0", size=2)) == ["a-00"]
    assert scheduler.bind(member("m0", size=2), "a-00") == ""
    assert scheduler.bind(last, "a-01") == ""


def test_a_reservation_for_another_group_is_not_free() -> None:
    scheduler = Scheduler({"a": 2})
    reserve(scheduler.cluster, member("m1", "other", 2), "a-01")
    assert scheduler.passing(member("m0", size=2)) == []


# Explanations of members.


def reasons_of(cluster: Cache, name: str) -> dict[str, str]:
    """What each node says to a pod that is known."""
    found = cluster.snapshot().pod_named("default", name)
    assert found is not None
    assert isinstance(found.request, GpuRequest)
    rows = answers_to(cluster.snapshot(), found)
    return {row.node: row.message for row in rows}


def test_the_node_of_a_bound_member_says_what_it_said_before() -> None:
    scheduler = Scheduler({"a": 2})
    for name, node in (("m0", "a-00"), ("m1", "a-01")):
        assert scheduler.bind(member(name, size=2), node) == ""
    assert reasons_of(scheduler.cluster, "m1")["a-01"] == ""


# Many groups that never end.


def started(groups: int, nodes: int) -> Scheduler:
    """Groups over one zone, each with one of its many members."""
    scheduler = Scheduler({"a": nodes})
    for name in scheduler.names:
        scheduler.cluster.put_labels(NodeName(name), NodeObject(labels={"zone": "z"}))
    for i in range(groups):
        manifest = member(f"g{i}", f"g{i}", 100, 1, {"group-domain": "zone"})
        manifest["spec"]["nodeName"] = scheduler.names[i % nodes]
        scheduler.cluster.put_pod(record_of(manifest))
    return scheduler


def test_no_pod_passes_before_all_reservations_are_known() -> None:
    scheduler = started(3, 50)
    asked = msgspec.convert(member("x", "x", 2, 1, {"group-domain": "zone"}), Pod)
    filter_nodes(
        scheduler.cluster, msgspec.convert(pod(1, {"link": "nvlink"}), Pod), scheduler.names
    )
    found = filter_nodes(
        scheduler.cluster, asked, scheduler.names, within(scheduler.cluster.clock, 0.0)
    )
    assert (found.node_names, found.error) == ([], STILL_WORKING)
    found = filter_nodes(scheduler.cluster, asked, scheduler.names)
    assert (found.node_names, found.error) == ([], "")


# Evictions for members of groups.


def test_no_pod_is_evicted_outside_of_the_groups_domain() -> None:
    scheduler = Scheduler({"a": 2, "b": 2})
    scheduler.cluster.budgets = ()
    assert scheduler.bind(member("m0", size=2), "a-00") == ""
    scheduler.cluster.put_pod(record_of(pod(4, name="other", uid="other", node="a-01")))
    wants = record_of(member("m1", size=2))
    scheduler.cluster.put_pod(replace(wants, attributes=SchedulingAttributes(priority=5)))
    found = eviction_advice(scheduler.cluster, "default", "m1")
    assert found is not None
    assert found.takes is None, "filter refuses rack b: its group is in a"
    assert found.plan is not None
    assert found.plan.node == "a-01"
    assert [step.pod for step in found.plan.steps] == ["other"]


def test_a_reservation_is_none_any_more_once_the_group_is_elsewhere() -> None:
    """Else those who are left would be evicted for it, and filter would refuse the pod there."""
    scheduler = Scheduler({"a": 2, "b": 2})
    cluster = scheduler.cluster
    cluster.budgets = ()
    cluster.put_pod(record_of(pod(4, name="other", uid="other", node="a-01")))
    kept = Reservation(NodeName("a-01"), cluster.today() + 60, frozenset({PodUid("other")}))
    wants = replace(record_of(member("m1", size=2)), attributes=SchedulingAttributes(priority=5))
    cluster.put_pod(replace(wants, reservation=kept))

    def holds() -> bool:
        found = eviction_advice(cluster, "default", "m1")
        assert found is not None
        assert found.reservation is not None
        assert found.reservation.node == "a-01"
        return not found.reservation.problem

    assert holds()
    assert scheduler.bind(member("m0", size=2), "b-00") == ""
    assert "a-01" not in scheduler.passing(member("m1", size=2))
    assert not holds()


def test_no_pod_is_evicted_for_a_group_that_would_wait_all_the_same() -> None:
    scheduler = Scheduler({"a": 2})
    scheduler.cluster.budgets = ()
    for i in range(2):
        scheduler.cluster.put_pod(record_of(pod(4, name=f"o{i}", uid=f"o{i}", node=f"a-0{i}")))
    wants = record_of(member("m0", size=2))
    scheduler.cluster.put_pod(replace(wants, attributes=SchedulingAttributes(priority=5)))
    found = eviction_advice(scheduler.cluster, "default", "m0")
    assert found is not None
    assert (found.takes, found.plan) == (None, None)


def test_preemption_takes_pods_that_end_as_gone_for_the_group_too() -> None:
    scheduler = Scheduler({"a": 2})
    scheduler.cluster.budgets = ()
    assert scheduler.bind(member("m0", size=2), "a-00") == ""
    held = scheduler.cluster
    for name, terminating in (("victim", False), ("ends", True)):
        found = record_of(pod(2, name=name, uid=name, node="a-01"))
        held.put_pod(
            replace(found, terminating=terminating, attributes=SchedulingAttributes(priority=-1))
        )
    offered: dict[str, MetaVictims | None] = {"a-01": MetaVictims([MetaPod("victim")], 0)}
    asked = msgspec.convert(member("m1", size=2), Pod)
    args = PreemptionArgs(asked, meta_victims=offered)
    assert set(preempt(held, args).meta_victims) == {"a-01"}


# Evictions on shared GPUs and on MIG.


def holding(topology: NodeTopology, resource: str, held: Mapping[str, Sequence[str]]) -> Cache:
    """A node with bare pods of low priority that run on these devices."""
    found = Cache(lambda: 0.0, Settings(stale_after=None))
    found.budgets = ()
    for uid, devices in held.items():
        manifest = shared.manifest(uid, len(devices), resource=resource, node=str(topology.name))
        running = replace(record_of(manifest), phase="Running", admitted=True)
        found.put_pod(replace(running, attributes=SchedulingAttributes(priority=-1)))
    allocations = tuple(
        Allocation(PodUid(uid), "default", uid, "main", resource, tuple(map(DeviceId, devices)))
        for uid, devices in held.items()
    )
    found.put_record(topology, Report("boot", 1, allocations=allocations))
    return found


def plan(cluster: Cache, manifest: Mapping[str, Any]) -> set[str]:
    """The pods that are evicted for a pod of priority 0."""
    cluster.put_pod(record_of(manifest))
    found = eviction_advice(cluster, "default", str(manifest["metadata"]["name"]))
    assert found is not None
    return {step.pod for step in found.plan.steps} if found.plan else set()


def test_shares_are_unblocked_for_a_pod_that_wants_the_gpu_alone() -> None:
    topology = shared.node(1, 4)
    gpu = topology.gpus[0].uuid
    there = holding(topology, shared.GPU, {"a": [f"{gpu}::0"], "b": [f"{gpu}::1"]})
    wanted = {"sharing": "exclusive", "same-numa": "true"}
    assert plan(there, shared.manifest("wants", 4, wanted)) == {"a", "b"}


def test_memory_of_shared_gpus_is_unblocked() -> None:
    topology = shared.node(1, 4)
    gpu = topology.gpus[0].uuid
    there = holding(topology, shared.GPU, {"a": [f"{gpu}::0"], "b": [f"{gpu}::1"]})
    assert len(plan(there, shared.manifest("wants", 1, shared.uses(25)))) == 1


def test_mig_instances_are_unblocked() -> None:
    topology = mig.node()
    parts = {f"p{g}": mig.ids(topology, g, 0) for g in range(len(topology.gpus))}
    there = holding(topology, mig.LARGE, parts)
    wanted = {"gpu-model": "*MIG-2g.12gb", "spread-gpus": "true"}
    assert len(plan(there, mig.asks(mig.LARGE, 2, wanted, name="wants", uid="wants"))) == 2


# Words that somebody else wrote.


def test_a_time_beyond_all_years_reserves_nothing() -> None:
    there = shared.Node(shared.node(1, 4))
    manifest = shared.manifest("wants", 1, {"min-gpu-memory": "1Gi"})
    written = '{"uid": "wants", "node": "node", "until": "9999-12-31T23:59:59-14:00"}'
    manifest["metadata"]["annotations"][RESERVED] = written
    there.cluster.put_pod(record_of(manifest))
    assert not there.cluster.snapshot().reserved_nodes(PodUid("wants"))
    assert b"wants" in b"".join(cluster_file(there.cluster))
    assert eviction_advice(there.cluster, "default", "wants") is not None


def test_a_start_beyond_the_years_is_none() -> None:
    there = shared.Node(shared.node(1, 4))
    manifest = pod(1, name="p", uid="p", node="node", phase="Running")
    manifest["status"]["startTime"] = "9999-12-31T23:59:59-14:00"
    there.cluster.put_pod(record_of(manifest))
    assert b'"p"' in b"".join(cluster_file(there.cluster))
