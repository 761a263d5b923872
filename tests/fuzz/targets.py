"""Untrusted input by kind: texts to begin with, and what must hold for each change of them.

A check returns what came of a text, in a word or a line, and raises where our side is at fault: an
exception that nobody is told of, a refusal of more than a line, an answer of status 500.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from scheduler_extender import verbs, wire
from scheduler_extender.annotations import KEYS, MANAGED, Malformed, parse
from scheduler_extender.files import clusterfile, podfile
from scheduler_extender.files.clusterfile import ClusterFileError
from scheduler_extender.files.podfile import PodFileError
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.kube.sinks import NodeSink, PodSink, RecordSink
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import pod_record
from tests.crd import ROOT
from tests.fuzz.mutation import changed_json, changed_text, json_text, nudged_json
from tests.nodes import bridged, container, pod, switched
from tests.topology.sources.test_bounds import JUNK, TEXTS, reads_or_refuses
from topology import codec
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.machines import machine

LONGEST = 1000  # Characters of a refusal
WORDS = (
    '"',
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "null",
    "\\",
    "\\u0000",
    "\\ud800",
    "1e999",
    "- ",
    "&a ",
    "*a",
    "!!",
)
ANNOTATIONS = {
    "link": "nvlink",
    "shape": "ring",
    "min-nvlinks": "2",
    "min-bandwidth": "37.5",
    "min-gpu-memory": "40Gi",
    "gpu-model": "A100*,NVIDIA H100*",
    "same-numa": "true",
    "nic": "pxb",
    "same-gpu": "true",
    "spread-gpus": "false",
    "gpu-memory": "12Gi",
    "sharing": "exclusive",
    "group": "train",
    "group-size": "2",
    "group-domain": "nvlink-domain",
    "policy": "preferred",
}
RESERVED = json.dumps(
    {"uid": "uid-1", "node": "switched", "until": "2999-01-01T00:00:00Z", "victims": ["a"]}
)


@dataclass(frozen=True)
class Target:
    """One kind of input. ``seeds`` are texts, or JSON values where ``structured``."""

    seeds: Sequence[Any]
    check: Callable[[str], str]
    structured: bool = True
    words: Sequence[str] = WORDS

    def text(self, rng: Random) -> str:
        """An input of this kind."""
        seed = rng.choice(self.seeds)
        if not self.structured:
            return changed_text(rng, seed, self.words)
        if rng.random() < 0.4:
            return json_text(nudged_json(rng, seed))
        text = json_text(changed_json(rng, seed))
        return changed_text(rng, text, self.words) if rng.random() < 0.1 else text


def line(message: str) -> str:
    """A refusal: one line for people."""
    assert message, "no word of why"
    assert "\n" not in message, message
    assert len(message) <= LONGEST, message
    assert "internal error" not in message, message
    return message


def blank() -> Cache:
    """Two nodes that can be asked. What fails about one is raised here."""
    cluster = Cache(lambda: 0.0, Settings())

    def fault(name: NodeName, error: Exception) -> None:
        raise AssertionError(f"{name}: {error!r}") from error

    cluster.faults.on_fault(fault)
    for node in (switched(), bridged()):
        cluster.put_record(node, Report("boot", 1))
    return cluster


def take(sink: RecordSink | PodSink | NodeSink, text: str) -> None:
    """Take an object as a watch brings it; what the sink would tell the log is raised here."""
    sink._take(msgspec.Raw(text.encode()))


def ask(cluster: Cache, manifest: wire.Pod) -> None:
    """Ask filter and prioritize, and hold the answers against what kube-scheduler needs of them."""
    names = [str(info.name) for info in cluster.snapshot().nodes]
    found = verbs.filter_nodes(cluster, manifest, names)
    named = [*(found.node_names or ()), *found.failed, *found.unresolvable]
    assert found.error or sorted(named) == sorted(names)
    for reason in (*found.failed.values(), *found.unresolvable.values()):
        line(reason)
    for row in verbs.prioritize(cluster, manifest, names):
        assert row.score in range(11)


ONE = msgspec.convert(pod(1, {"min-gpu-memory": "1Gi"}), wire.Pod)
PAIR = msgspec.convert(pod(2, {"link": "nvlink"}), wire.Pod)
QUAD = msgspec.convert(pod(4, {"shape": "ring", "policy": "preferred"}), wire.Pod)
EXACTLY = {"nvidia.com/gpu": 2, "cpu": "2", "memory": "1Ki"}
# The kubelet's managers have a say in what it gets.
WHOLE_CPUS = msgspec.convert(
    pod(
        annotations={"same-numa": "true"},
        containers=[{"name": "a", "resources": {"limits": EXACTLY, "requests": EXACTLY}}],
        qosClass="Guaranteed",
    ),
    wire.Pod,
)


def check_record(text: str) -> str:
    """A GPUTopology object, as a watch brings it."""
    cluster = blank()
    try:
        take(RecordSink(cluster, lambda: 0.0), text)
    except (msgspec.DecodeError, RecursionError):  # of which not even the name can be read
        return "no object"
    for info in cluster.snapshot().nodes:
        if info.record.problem is not None:
            return line(info.record.problem)
    for asked in (ONE, PAIR, QUAD, WHOLE_CPUS):
        ask(cluster, asked)
    for info in cluster.snapshot().nodes:
        if info.topology is not None:
            again = codec.decode(codec.encode(info.topology, info.report))
            assert again.topology == info.topology
    return "read"


def check_pod(text: str) -> str:
    """A Pod, as a watch brings it and as kube-scheduler asks about it."""
    cluster = blank()
    try:
        manifest = wire.pod_decoder.decode(text.encode())
    except (msgspec.DecodeError, RecursionError):
        return "no pod"
    take(PodSink(cluster, lambda: 0.0), text)
    request = parse(manifest)
    record = pod_record(manifest, MANAGED)  # the sink passes over texts without our resource's name
    if record is not None:
        cluster.put_pod(record)
    if isinstance(request, Malformed):
        line(request.reason)
    ask(cluster, manifest)
    return "none of ours" if request is None else type(request).__name__


def check_annotation(text: str) -> str:
    """Annotations of a pod for two GPUs: a JSON object of texts."""
    try:
        given = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        return "no annotations"
    manifest = msgspec.convert(pod(2, given), wire.Pod)
    request = parse(manifest)
    assert request is not None
    assert parse(manifest) == request
    ask(blank(), manifest)
    return line(request.reason) if isinstance(request, Malformed) else request.request.text


def check_node(text: str) -> str:
    """A Node, as a watch brings it."""
    try:
        take(NodeSink(blank()), text)
    except (msgspec.DecodeError, RecursionError):
        return "no node"
    return "read"


def check_cluster_file(text: str) -> str:
    """A cluster file; what is read can be written and read again."""
    try:
        content = clusterfile.parse(text, "file")
    except ClusterFileError as error:
        return line(str(error))
    if len(content.records) > 50:
        return "large"
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    clusterfile.feed(cluster, content)
    ask(cluster, PAIR)
    again = clusterfile.parse(b"".join(cluster_file(cluster)).decode(), "snapshot")
    assert {r.topology for r in again.records} == {r.topology for r in content.records}
    return "read"


def check_pod_file(text: str) -> str:
    """A file with a pod, as `check` takes it."""
    try:
        found = podfile.read(text)
    except PodFileError as error:
        return line(str(error))
    for note in found.notes:
        line(note)
    return "read"


def _full(node: NodeTopology) -> dict[str, Any]:
    """A record with something in every field that the codec writes."""
    ids = tuple(DeviceId(gpu.uuid) for gpu in node.gpus[:2])
    held = Allocation(PodUid("u"), "default", "p", "main", "nvidia.com/gpu", ids)
    allocatable = frozenset(DeviceId(gpu.uuid) for gpu in node.gpus)
    report = Report("boot", 1, allocatable=allocatable, allocations=(held,))
    found: dict[str, Any] = json.loads(json.dumps(codec.encode(node, report)))
    found["spec"]["numaNodes"] = [
        {"id": 0, "distances": "10 21", "cpus": "0-3", "socket": 0},
        {"id": 1, "distances": "21 10", "cpus": "4-7", "memory": [{"type": "memory", "bytes": 1}]},
    ]
    found["spec"]["cpus"] = {"allocatable": "0-7", "wholeCores": "0-7", "threadsPerCore": 2}
    found["spec"]["allocator"] |= {"cpuManagerPolicy": "static", "memoryManagerPolicy": "Static"}
    block = {"type": "memory", "bytes": 1, "numaNodes": [0, 1]}
    found["status"] |= {
        "exclusive": [{"namespace": "default", "pod": "p", "cpus": "1-2", "memory": [block]}],
        "health": [{"uuid": str(node.gpus[0].uuid), "healthy": False, "reason": "Xid79"}],
        "missing": [{"name": "GPU-9", "counted": True}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return found


def _waiting() -> dict[str, Any]:
    """A pod of a gang, for which a place is reserved."""
    found = pod(1, {"gpu-memory": "12Gi", "group-size": "2", "reserved": RESERVED})
    found["metadata"] |= {
        "labels": {"scheduling.x-k8s.io/pod-group": "g"},
        "ownerReferences": [{"kind": "ReplicaSet", "controller": True}],
    }
    found["spec"] |= {
        "priority": 5,
        "schedulingGroup": {"podGroupName": "train"},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
    }
    found["status"]["nominatedNodeName"] = "switched"
    return found


def _aligned(
    found: dict[str, Any], policy: str, scope: str, closest: bool | None
) -> dict[str, Any]:
    """The same record where a Topology Manager has a say."""
    chosen: dict[str, Any] = {"topologyManagerPolicy": policy, "topologyManagerScope": scope}
    if closest is not None:
        chosen["preferClosestNumaNodes"] = closest
    spec = found["spec"]
    devices = [
        device | {"topologyNodes": [i * 2 // len(spec["devices"])]}
        for i, device in enumerate(spec["devices"])
    ]
    allocator = spec["allocator"] | chosen | {"alignBySocket": False}
    return found | {"spec": spec | {"devices": devices, "allocator": allocator}}


RECORDS = [
    _full(machine(kind).topology(NodeName("node")))
    for kind in ("dgx1-v100", "a100-pcie-4-bridged", "l40s-4")
]
RECORDS += [
    _aligned(RECORDS[0], "best-effort", "container", closest=True),
    _aligned(RECORDS[1], "restricted", "pod", closest=None),
    _aligned(RECORDS[2], "single-numa-node", "container", closest=False),
]
PODS = [
    pod(2, ANNOTATIONS),
    pod(
        annotations={"link": "nvlink"},
        containers=[container("a", 1), container("b", 2, restartPolicy="Always")],
        init=[container("i", 1)],
        node="switched",
        phase="Running",
        conditions=[{"type": "PodScheduled", "status": "True"}],
        startTime="2026-01-01T00:00:00Z",
    ),
    _waiting(),
]
GROUP = {"kind": "MachineGroup", "machine": "l40s-4", "count": 3, "namePrefix": "n-"}
CLUSTERS = [
    {"kind": "List", "items": [RECORDS[1], {"kind": "Pod", **PODS[1]}]},
    {"kind": "List", "items": [GROUP, {"kind": "Pod", **PODS[0]}]},
]
NODE = {
    "metadata": {"name": "n", "annotations": {"gpu-topology.io/resume": "2026-01-01T00:00:00Z"}},
    "status": {"allocatable": {"nvidia.com/gpu": "4", "cpu": "1"}},
}
SAMPLES = [path.read_text() for path in sorted((ROOT / "manifests" / "samples").glob("*.yaml"))]
MIXED = (ROOT / "examples" / "clusters" / "mixed.yaml").read_text()

TARGETS = {
    "topology text or XML": Target(TEXTS, reads_or_refuses, structured=False, words=JUNK),
    "record": Target(RECORDS, check_record),
    "pod": Target(PODS, check_pod),
    "annotations": Target([ANNOTATIONS, dict.fromkeys(KEYS, "1")], check_annotation),
    "node": Target([NODE], check_node),
    "cluster file of objects": Target(CLUSTERS, check_cluster_file),
    "cluster file": Target([MIXED], check_cluster_file, structured=False),
    "pod file": Target(SAMPLES, check_pod_file, structured=False),
}
