"""/v1/snapshot is a cluster file that gives the same answers as the cluster it was taken of."""

import json
import random
from dataclasses import replace

import msgspec
import pytest
import yaml

from scheduler_extender.annotations import MANAGED, Malformed
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.files.clusterfile import ClusterFileError, feed, parse
from scheduler_extender.files.machinegroups import Allocatable
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.framework.equivalence import answer
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import amounts_of
from scheduler_extender.state.pods.budgets import Budget
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.state.pods.selecting import Requirement
from scheduler_extender.wire import Pod, Taint
from tests.dranodes import NODE, claim, device_class, raw, two_pairs
from tests.nodes import pod, record_of
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.links import GBps, LinkKind
from topology.core.report import Health, Report
from topology.core.requests import Constraints, GpuRequest, Pattern, Policy, gpu_request
from topology.emulation import EmulatedKubelet, Refused
from topology.machines import machine

PLACED = '{"verdict":"guaranteed"}'
NVLINK = Constraints(link=LinkKind.NVLINK)
REQUESTS = (
    gpu_request(1),
    gpu_request(2),
    gpu_request(2, NVLINK),
    gpu_request(4, NVLINK),
    gpu_request(3, replace(NVLINK, pattern=Pattern.RING)),
    gpu_request(2, NVLINK, Policy.PREFERRED),
)


def record(name: str, count: int, **more: object) -> PodRecord:
    annotations = {"link": "nvlink", "placement": PLACED} if count > 1 else {}
    manifest = pod(count, annotations, name=name, uid=f"uid-{name}", **more)  # type: ignore[arg-type]
    found = pod_record(msgspec.convert(manifest, Pod), MANAGED, trusted=True)
    assert found is not None
    return found


def lived_in(seed: int) -> Cache:
    """A used cluster: GPUs in use or sick, pods unacknowledged, assumed, unconfirmed, waiting."""
    rng = random.Random(seed)
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    names = ("dgx1-v100", "a100-pcie-4-bridged", "hgx-h100-8", "l40s-8")
    for i, kind in enumerate(names * 3):
        topology = machine(kind).topology(f"node-{i:02}")
        kubelet = EmulatedKubelet(topology, rng)
        for j in range(rng.randint(0, 4)):
            known = record(f"p{i}-{j}", rng.choice((1, 1, 2)), node=topology.name)
            assert isinstance(known.request, GpuRequest)
            fate = rng.choice(("shown", "shown", "bound", "leaving", "in flight", "unknown"))
            if fate in ("shown", "leaving", "unknown"):
                try:
                    kubelet.admit(known.uid, known.namespace, known.name, known.request)
                except Refused:
                    continue
            if fate == "in flight":
                cluster.assume(topology.name, replace(known, node=None))
            elif fate != "unknown":
                cluster.put_pod(replace(known, terminating=fate == "leaving"))
        report = kubelet.report()
        if rng.random() < 0.3:
            report = replace(report, health=(Health(topology.gpus[1].uuid, False, "Xid79"),))
        cluster.put_record(topology, report)
    cluster.put_pod(replace(record("waits", 4), called_unschedulable=True))
    return cluster


def replayed(cluster: Cache) -> Cache:
    """A cluster that has read the file of this one."""
    again = Cache(lambda: 0.0, Settings(stale_after=None))
    feed(again, parse(b"".join(cluster_file(cluster)).decode()))
    return again


def answers(cluster: Cache) -> dict[str, list[object]]:
    return {
        name: [
            (d.verdict, d.rejection, d.assessment.sets if d.assessment else None)
            for d in (
                answer(cluster.snapshot(), cluster.node_info(name), request) for request in REQUESTS
            )
        ]
        for name in sorted(cluster.snapshot().by_name)
    }


@pytest.mark.parametrize("seed", range(6))
def test_the_file_replays_the_state(seed: int) -> None:
    cluster = lived_in(seed)
    text = b"".join(cluster_file(cluster)).decode()
    again = Cache(lambda: 0.0, Settings(stale_after=None))
    feed(again, parse(text))
    assert answers(again) == answers(cluster)
    # And once more: nothing is lost on the way.
    assert b"".join(cluster_file(again)).decode().splitlines()[1:] == text.splitlines()[1:]


@pytest.mark.parametrize("named", [True, False], ids=["by number", "by claims alone"])
def test_a_node_with_dra_is_replayed(named: bool) -> None:
    """Its Node advertises no GPUs, its claims are allocations of the record, and who may have its
    GPUs is a fact of the allocator."""
    world = two_pairs()
    if not named:
        nameless = msgspec.json.decode(device_class())
        del nameless["spec"]["extendedResourceName"]
        world.classes.apply(raw(nameless))
    seen = NodeObject(advertises_none=True, allocatable=amounts_of({"cpu": "8"}))
    world.cluster.put_node(NODE, seen)
    world.claims.apply(claim("of-a-pod", 3, pod="p"))
    world.claims.apply(claim("of-two", 0, pods=("q", "r")))
    assert answers(replayed(world.cluster)) == answers(world.cluster)


def test_every_yaml_reader_reads_it() -> None:
    text = b"".join(cluster_file(lived_in(1))).decode()
    documents = list(yaml.safe_load_all(text))
    assert {d["kind"] for d in documents} == {"GPUTopology", "Pod"}
    # Read as YAML (a comment between documents) or as JSON, it is the same.
    mixed = parse(text.replace("---\n", "--- # a document\n"))
    assert mixed == parse(text)


def test_kubectls_json_is_read_as_its_yaml() -> None:
    text = b"".join(cluster_file(lived_in(1))).decode()
    whole = {
        "kind": "List",
        "items": list(yaml.safe_load_all(text)),
        "metadata": {"selfLink": "\U0001f680"},  # two escapes in JSON
    }
    assert parse(json.dumps(whole, indent=4)) == parse(yaml.safe_dump(whole))


@pytest.mark.parametrize("before", ["", "---\n"], ids=["object", "snapshot"])
def test_a_key_that_stands_twice_in_json_is_refused(before: str) -> None:
    text = f'{before}{{"kind":"List","kind":"List"}}\n'
    with pytest.raises(ClusterFileError, match="the key 'kind' stands twice"):
        parse(text)


def test_what_cannot_be_replayed_is_reported() -> None:
    clock = [0.0]
    cluster = Cache(lambda: clock[0], Settings(stale_after=10))
    node: NodeTopology = machine("l40s-4").topology("old")
    cluster.put_record(node, Report())
    cluster.put_problem(NodeName("bad"), "spec.devices: two\nlines")
    cluster.put_node(NodeName("bare"), NodeObject())
    clock[0] = 11
    cluster.put_record(machine("l40s-4").topology("new"), None)
    cluster.put_record(machine("l40s-4").topology("dra"), Report())
    cluster.put_node(NodeName("dra"), NodeObject(advertises_none=True))
    text = b"".join(cluster_file(cluster)).decode()
    comments = [line for line in text.splitlines() if line.startswith("#")][1:]
    assert comments == [
        "# bad: left out, spec.devices: two lines",
        "# bare: left out, no topology report",
        "# dra: left out, its GPUs are served by DRA only",
        "# new: left out, no topology report",
        "# old: its report was stale",
    ]
    assert [r.topology.name for r in parse(text).records] == ["old"]


def test_a_name_ends_no_comment() -> None:
    """No API server takes such a name; a cluster file may have it."""
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    cluster.put_pod(record_of(pod(1, node="a\nb: [")))
    text = b"".join(cluster_file(cluster)).decode()
    assert "# a b: [: left out, no topology report" in text
    assert [each["kind"] for each in yaml.safe_load_all(text)] == ["Pod"]


def test_a_cordon_is_replayed() -> None:
    """A cordoned node has no places for members of groups that are to come."""
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    for name in ("cordoned", "open"):
        cluster.put_record(machine("l40s-4").topology(name), Report())
        cluster.put_node(NodeName(name), NodeObject(cordoned=name == "cordoned"))
    again = replayed(cluster)
    assert {info.name: info.node_object.cordoned for info in again.snapshot().nodes} == {
        "cordoned": True,
        "open": False,
    }


def test_an_assumed_pod_is_written_once() -> None:
    cluster = lived_in(0)
    known = record("twice", 1)
    cluster.put_pod(known)
    cluster.assume(NodeName("node-00"), known)
    text = b"".join(cluster_file(cluster)).decode()
    assert text.count(f'"uid":"{PodUid("uid-twice")}"') == 1


def test_allocatable_of_nodes_and_groups() -> None:
    text = """
kind: MachineGroup
machine: l40s-4
count: 1
namePrefix: g-
cpu: 96
memory: 720Gi
---
kind: MachineGroup
machine: l40s-4
count: 1
namePrefix: h-
---
kind: Node
apiVersion: v1
metadata: {name: h-00}
status: {allocatable: {cpu: 3500m, memory: 1Gi, pods: "30", nvidia.com/gpu: "4"}}
"""
    found = parse(text).allocatable
    assert (found[NodeName("g-00")].cpu, found[NodeName("g-00")].memory) == (96_000, 720 * 2**30)
    assert (found[NodeName("h-00")].cpu, found[NodeName("h-00")].pods) == (3500, 30)
    with pytest.raises(ClusterFileError, match=r"document 1: cpu: \"many\" is not a quantity"):
        parse(text.replace("cpu: 96", "cpu: many"))


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_line_breaks_in_a_pods_texts_make_no_snapshot_unreadable(end: str) -> None:
    """To Python these end a line, and to JSON they do not; what follows is no YAML at all."""
    cluster = lived_in(1)
    kept = {"uid": "uid-waits", "node": f"n{end}\x7f", "until": "2999-01-01T00:00:00Z"}
    manifest = pod(1, {"reserved": json.dumps(kept)}, name="waits", uid="uid-waits")
    waits = record_of(manifest)
    assert waits.reservation is not None
    cluster.put_pod(waits)
    read = parse(b"".join(cluster_file(cluster)).decode())
    (again,) = (found for found in read.pods if found.uid == waits.uid)
    assert again.reservation == waits.reservation


def test_pods_come_back_as_they_were() -> None:
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    node = machine("dgx1-v100").topology("n")
    kubelet = EmulatedKubelet(node, random.Random(1))
    seen = record("seen", 2, node="n")
    assert isinstance(seen.request, GpuRequest)
    kubelet.admit(seen.uid, "default", "seen", seen.request)
    fast = Constraints(min_bandwidth=GBps(1234.5678))
    slow = Constraints(min_bandwidth=GBps(0.00001))
    pods = [
        replace(
            record("alone", 1, node="n"), request=replace(gpu_request(1), only_gpu_plugin=False)
        ),
        replace(record("waits", 1), called_unschedulable=True),
        replace(record("fast", 1), request=gpu_request(2, fast)),
        replace(record("slow", 1), request=gpu_request(2, slow)),
        seen,
    ]
    for known in pods:
        cluster.put_pod(known)
    cluster.put_record(node, kubelet.report())
    # A kubelet that has just been restarted shows nobody: the pod is known to run all the same.
    cluster.put_record(node, replace(kubelet.report(), allocations=()))
    again = replayed(cluster)
    assert answers(again) == answers(cluster)
    assert [p.name for p in again.snapshot().unschedulable] == ["waits"]
    for known in pods[:4]:
        back = again.pod(known.uid)
        assert back is not None
        assert back.request == known.request


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cpu": 4}, Allocatable(4000, 10**18, 10**6)),
        ({"memory": "4Gi"}, Allocatable(10**12, 4 * 2**30, 10**6)),
        ({"cpu": "500m", "memory": 1}, Allocatable(500, 1, 10**6)),
    ],
)
def test_what_a_group_does_not_say_is_no_limit(
    given: dict[str, object], expected: Allocatable
) -> None:
    group = {"kind": "MachineGroup", "machine": "l40s-4", "count": 1, "namePrefix": "x-", **given}
    assert set(parse(json.dumps(group)).allocatable.values()) == {expected}


TAINT = Taint("example.com/team", "a", "NoSchedule")


def guarded() -> Cache:
    """Nodes of which each is closed to some pods, by a taint, a label or a cordon."""
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    for name, labels, taints, cordoned in (
        ("tainted", {"example.com/pool": "x"}, (TAINT,), False),
        ("labelled", {"example.com/pool": "y", "kubernetes.io/hostname": "labelled"}, (), False),
        ("cordoned", {}, (), True),
        ("bare", {}, (), False),
    ):
        cluster.put_record(machine("l40s-4").topology(name), Report())
        cluster.put_node(
            NodeName(name), NodeObject(labels=labels, taints=taints, cordoned=cordoned)
        )
    return cluster


def selecting(**spec: object) -> PodRecord:
    manifest = pod(4, name="wants", uid="uid-wants")
    manifest["spec"] |= spec
    return record_of(manifest)


@pytest.mark.parametrize(
    ("spec", "open_to_it"),
    [
        pytest.param({}, {"labelled", "bare"}, id="tolerates nothing"),
        pytest.param(
            {"tolerations": [{"key": TAINT.key, "operator": "Exists"}]},
            {"tainted", "labelled", "bare"},
            id="tolerates the taint",
        ),
        pytest.param({"nodeSelector": {"example.com/pool": "y"}}, {"labelled"}, id="selects"),
        pytest.param({"nodeSelector": {"example.com/pool": "z"}}, set(), id="selects nothing"),
    ],
)
def test_a_file_closes_nodes_to_the_same_pods(
    spec: dict[str, object], open_to_it: set[str]
) -> None:
    cluster, asked = guarded(), selecting(**spec)
    cluster.budgets = ()
    again = Cache(lambda: 0.0, Settings(stale_after=None))
    text = b"".join(cluster_file(cluster)).decode()
    feed(again, parse(text))
    for each in (cluster, again):
        assert {f.name for f in each.snapshot().nodes if f.is_eligible_for(asked)} == open_to_it
        each.put_pod(replace(asked, called_unschedulable=True))
    answer = [eviction_advice(each, "default", "wants") for each in (cluster, again)]
    assert answer[0] == answer[1]
    assert b"".join(cluster_file(again)).decode().startswith(text[: text.index("\n")])


def test_a_node_that_says_nothing_of_a_snapshot_may_have_more_labels() -> None:
    """People write the labels that they need; a selector that names others closes no node."""
    text = b"".join(cluster_file(guarded())).decode()
    by_hand = text.replace('"annotations":{"gpu-topology.io/snapshot":"1"}', '"annotations":{}')
    assert by_hand != text
    content = parse(by_hand)
    again = Cache(lambda: 0.0, Settings(stale_after=None))
    tainted = replace(content.nodes[NodeName("tainted")], taints=(), exists=False)
    feed(again, replace(content, nodes=content.nodes | {NodeName("tainted"): tainted}))
    asked = selecting(nodeSelector={"example.com/another": "z"})
    assert all(info.is_eligible_for(asked) for info in again.snapshot().nodes)


def test_a_snapshot_of_a_later_version_is_read() -> None:
    text = b"".join(cluster_file(guarded())).decode()
    later = text.replace('"gpu-topology.io/snapshot":"1"', '"gpu-topology.io/snapshot":"2"')
    assert later != text
    assert parse(later) == parse(text)


def test_a_node_as_the_api_server_gives_it_is_whole() -> None:
    text = """
kind: MachineGroup
machine: l40s-4
count: 2
namePrefix: n
---
kind: Node
metadata: {name: n00, uid: u, labels: {pool: a}}
---
kind: Node
metadata: {name: n01, labels: {block: b}}
"""
    content = parse(text)
    assert {name for name, node in content.nodes.items() if node.exists} == {"n00"}
    again = Cache(lambda: 0.0, Settings(stale_after=None))
    feed(again, content)
    asked = selecting(nodeSelector={"pool": "b"})
    assert {info.name for info in again.snapshot().nodes if info.is_eligible_for(asked)} == {"n01"}


UNREADABLE = {
    "a value": ({"min-gpu-memory": "lots"}, {}),
    "a key": ({"linked": "yes"}, {}),
    "a long value": ({"gpu-model": "H100*" * 1000}, {}),
    "both of two": ({"same-gpu": "true", "spread-gpus": "true"}, {}),
    "its group": ({"group": "g", "group-size": "many"}, {}),
    "a count": ({}, {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1.5"}}}]}),
}


@pytest.mark.parametrize(("annotations", "spec"), UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("node", ["n", None])
def test_a_pod_that_cannot_be_read_comes_back_as_one(
    annotations: dict[str, str], spec: dict[str, object], node: str | None
) -> None:
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    cluster.put_record(machine("l40s-4").topology("n"), Report())
    manifest = pod(2, annotations, name="odd", uid="uid-odd", node=node)
    manifest["spec"] |= spec
    odd = record_of(manifest)
    assert isinstance(odd.request, Malformed)
    cluster.put_pod(odd)
    text = b"".join(cluster_file(cluster)).decode()
    (read,) = parse(text).pods
    assert read.request == odd.request
    again = Cache(lambda: 0.0, Settings(stale_after=None))
    feed(again, parse(text))
    assert answers(again) == answers(cluster)
    assert b"".join(cluster_file(again)).decode().splitlines()[1:] == text.splitlines()[1:]


def test_a_pod_of_a_cluster_cannot_call_itself_unreadable() -> None:
    """There the key is unknown, as any other of ours."""
    found = record_of(msgspec.convert(pod(2, {"malformed": "because"}), Pod))
    assert isinstance(found.request, Malformed)
    assert "unknown key" in found.request.reason


BUDGETS = (
    Budget("default", "all", (), 1),
    Budget("default", "half", (Requirement("app", "NotIn", ("a", "b")),), 2, frozenset({"x", "y"})),
    Budget("default", "nobody", None),
    Budget("other", "some", (Requirement("app", "In", ("a",)), Requirement("tier", "Exists"))),
)


def crowded(budgets: tuple[Budget, ...] | None) -> Cache:
    """A node full of pods that a pod of higher priority waits for."""
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    topology = machine("l40s-4").topology("n")
    kubelet = EmulatedKubelet(topology, random.Random(1))
    for i in range(4):
        known = record(f"p{i}", 1, node="n")
        labels = (("app", "ab"[i % 2]),)
        attributes = replace(known.attributes, labels=labels, controller="Job")
        known = replace(known, attributes=attributes, phase="Running")
        assert isinstance(known.request, GpuRequest)
        kubelet.admit(known.uid, known.namespace, known.name, known.request)
        cluster.put_pod(known)
    cluster.put_record(topology, kubelet.report())
    waits = record("waits", 3)
    waits = replace(
        waits, attributes=replace(waits.attributes, priority=10), called_unschedulable=True
    )
    waits = replace(waits, request=gpu_request(3))
    cluster.put_pod(waits)
    cluster.budgets = budgets
    return cluster


@pytest.mark.parametrize("budgets", [BUDGETS, BUDGETS[:1], BUDGETS[2:], ()])
def test_a_file_has_the_budgets_and_the_same_plan(budgets: tuple[Budget, ...]) -> None:
    cluster = crowded(budgets)
    again = replayed(cluster)
    assert again.budgets == budgets
    plans = [eviction_advice(each, "default", "waits") for each in (cluster, again)]
    assert plans[0] == plans[1]
    assert plans[0] is not None
    assert bool(plans[0].plan) == (BUDGETS[0] not in budgets)


def test_unknown_budgets_are_left_out_and_reported() -> None:
    text = b"".join(cluster_file(crowded(None))).decode()
    assert text.splitlines()[0].endswith(
        "PodDisruptionBudgets are left out, because they could not be read."
    )
    assert parse(text).budgets == ()


def test_a_budget_is_read_as_people_write_it() -> None:
    text = """
kind: MachineGroup
machine: l40s-4
count: 1
namePrefix: n
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: serve}
spec: {minAvailable: 1, selector: {matchLabels: {app: serve}}}
status: {disruptionsAllowed: 1}
"""
    budget = Budget("default", "serve", (Requirement("app", "In", ("serve",)),), 1)
    assert parse(text).budgets == (budget,)
    for wrong, words in (
        (
            "disruptionsAllowed: one",
            "PodDisruptionBudget: status.disruptionsAllowed: a whole number is needed, not a text",
        ),
        (f"disruptionsAllowed: 1}}\n---\n{text.split('---')[1]}#", "serve is defined twice"),
    ):
        with pytest.raises(ClusterFileError, match=words):
            parse(text.replace("disruptionsAllowed: 1", wrong))


def test_what_kube_scheduler_gives_out_is_replayed() -> None:
    """It counts by it how many siblings of a gang it sends to a node."""
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    for name, given in (("most", "3"), ("all", "4"), ("unsaid", None)):
        cluster.put_record(machine("l40s-4").topology(name), Report())
        offered = None if given is None else amounts_of({"nvidia.com/gpu": given, "cpu": "1500m"})
        cluster.put_node(NodeName(name), NodeObject(allocatable=offered))
    again = Cache(lambda: 0.0, Settings(stale_after=None))
    content = parse(b"".join(cluster_file(cluster)).decode())
    feed(again, content)
    for each in cluster.snapshot().nodes:
        assert again.node_info(each.name).node_object.allocatable == each.node_object.allocatable
        assert again.node_info(each.name).key("nvidia.com/gpu") == each.key("nvidia.com/gpu")
    assert content.allocatable == {
        NodeName(name): Allocatable(1500, 10**18, 10**6) for name in ("most", "all")
    }


def test_a_pod_whose_claim_has_gpus_is_not_nominated_in_the_file() -> None:
    world = two_pairs()
    world.claims.apply(claim("c", 0, 1, pod="wants"))
    world.cluster.put_pod(record_of(pod(2, {"link": "nvlink"}, name="wants", uid="wants")))
    assert [each.uid for each in world.cluster.snapshot().nominated.values()] == ["wants"]
    assert b"nominatedNodeName" not in b"".join(cluster_file(world.cluster))
