"""``gpu-topology check`` of one pod: its answer as text and as JSON, and its warnings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import Done, asked
from topology.codec import encode
from topology.core.devices import DeviceId, GpuResource, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

ROOT = Path(__file__).parents[3]
CLUSTER = ROOT / "examples" / "clusters" / "mixed.yaml"
PAIR = ROOT / "manifests" / "samples" / "pair-nvlink.yaml"


def run(*words: str | Path, given: str = "") -> Done:
    return asked(main, *words, given=given)


def test_check_as_json_follows_the_contract() -> None:
    done = run("check", PAIR, "--cluster", CLUSTER, "--output", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["pod"] == "pair-nvlink"
    nodes = {row["node"]: row for row in answer["nodes"]}
    assert len(nodes) == len(answer["nodes"]) == 8
    good = nodes["h100-00"]
    assert good["verdict"] == "guaranteed"
    assert len(good["outcomes"]) == 12
    assert good["containers"] == [{"name": "main", "outcomes": good["outcomes"]}]
    assert (good["hazards"], good["message"], good["note"]) == ([], "", "")
    assert good["outcomes"] == sorted(good["outcomes"]), "the lowest GPUs first"
    assert good["outcomes"][:4] == [[0, 1], [0, 2], [0, 3], [1, 2]]
    assert (good["score"], good["resolvable"]) == (8, None)
    bad = nodes["l40s-01"]
    assert (bad["verdict"], bad["outcomes"], bad["score"]) == ("never", [], None)
    assert bad["containers"] == [{"name": "main", "outcomes": []}]
    assert bad["message"] == "the hardware has no set of 2 GPUs with link=nvlink"
    assert bad["resolvable"] is False


def test_check_warns_on_stderr_of_what_has_no_effect() -> None:
    pod = yaml.safe_load(PAIR.read_text())
    made = {"metadata": {"name": "train", **pod["metadata"]}, "spec": {"template": pod}}
    done = run("check", "-", "--cluster", CLUSTER, given=yaml.safe_dump({"kind": "Job", **made}))
    assert done.returncode == 0
    assert done.stderr.startswith(
        "warning: standard input: annotation gpu-topology.io/link has no effect on the Job"
    )
    assert done.stderr.count("\n") == 1


def test_check_says_why_a_node_that_passes_promises_nothing() -> None:
    sample = PAIR.with_name("quad-preferred.yaml")
    done = run("check", sample, "--cluster", CLUSTER)
    assert "8 of 8 nodes would take it (4 with a promise); without a promise: " in done.stdout
    answer = json.loads(run("check", sample, "--cluster", CLUSTER, "--output", "json").stdout)
    never = "the hardware has no set of 4 GPUs with link=nvlink"
    for row in answer["nodes"]:
        why = "" if row["verdict"] == "guaranteed" else never
        assert (row["note"], row["message"], row["resolvable"]) == (why, "", None)
        assert row["outcomes"], "the pod fits: some set will be handed out to it"
        assert row["containers"] == [{"name": "main", "outcomes": row["outcomes"]}]
    assert done.stdout.count("fits, preferred: never") == 4
    assert answer.keys() == {"pod", "request", "file", "nodes", "notes"}


STATIC = """
apiVersion: gpu-topology.io/v1alpha1
kind: GPUTopology
metadata: {name: two-sockets}
spec:
  resources: [{name: nvidia.com/gpu, strategy: none, replicas: 1}]
  allocator:
    policy: best-effort
    topologyManagerPolicy: restricted
    cpuManagerPolicy: static
    memoryManagerPolicy: None
    alignBySocket: false
    fullPcpusOnly: false
  devices:
  - {index: 0, uuid: GPU-0, product: A, memoryBytes: 1, numaNode: 0, topologyNodes: [0]}
  - {index: 1, uuid: GPU-1, product: A, memoryBytes: 1, numaNode: 1, topologyNodes: [1]}
  links: [{a: 0, b: 1, pcie: SYS}]
  numaNodes:
  - {id: 0, distances: 10 21, cpus: 0-7, socket: 0}
  - {id: 1, distances: 21 10, cpus: 8-15, socket: 1}
  cpus: {allocatable: 1-15, wholeCores: 2-15, threadsPerCore: 2}
status:
  bootID: boot
  sequence: 1
  exclusive: []
"""
MISSING_FIELDS = {
    # The field, and the keys from the record to the field: without it CPUs count for nothing.
    "spec.allocator.cpuManagerPolicy": ("spec", "allocator", "cpuManagerPolicy"),
    "spec.allocator.memoryManagerPolicy": ("spec", "allocator", "memoryManagerPolicy"),
    "spec.allocator.alignBySocket": ("spec", "allocator", "alignBySocket"),
    "spec.numaNodes[].cpus": ("spec", "numaNodes", 1, "cpus"),
    "spec.cpus": ("spec", "cpus"),
    "spec.numaNodes[].distances": ("spec", "numaNodes", 1, "distances"),
    "spec.devices[].topologyNodes": ("spec", "devices", 0, "topologyNodes"),
    "status.exclusive": ("status", "exclusive"),
}


def asked_of(record: object, folder: Path, cpu: str = "4") -> tuple[str, list[str]]:
    """What check says about a node to a pod of the class Guaranteed: as text, and what it lacks."""
    manifest = yaml.safe_load(PAIR.read_text())
    manifest["metadata"]["annotations"] = {}
    limits = {"cpu": cpu, "memory": "1Gi", "nvidia.com/gpu": "2"}
    manifest["spec"]["containers"][0]["resources"] = {"limits": limits}
    path, cluster = folder / "pod.yaml", folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(manifest))
    cluster.write_text(yaml.safe_dump(record))
    words = run("check", path, "--cluster", cluster, "-o", "wide").stdout
    answer = json.loads(run("check", path, "--cluster", cluster, "--output", "json").stdout)
    return words, answer["nodes"][0]["lacks"]


@pytest.mark.parametrize("field", MISSING_FIELDS)
def test_check_and_why_name_the_field_without_which_cpus_count_for_nothing(
    field: str, tmp_path: Path
) -> None:
    record = part = yaml.safe_load(STATIC)
    *path, last = MISSING_FIELDS[field]
    for key in path:
        part = part[key]
    del part[last]
    words, lacks = asked_of(record, tmp_path)
    assert lacks == [field]
    sentence = f"free CPUs and memory are unknown: the node's record has no {field}"
    assert "".join(sentence.split()) in "".join(words.split()), "the table may fold it"
    both = tmp_path / "both.yaml"
    pod = (tmp_path / "pod.yaml").read_text()
    both.write_text(f"{yaml.safe_dump(record)}---\n{pod}")
    notes = " ".join(run("why", "pair-nvlink", "--cluster", both).stdout.split())
    assert f"two-sockets: free CPUs and memory are unknown: the record has no {field}" in notes


def test_check_names_no_field_where_cpus_count_or_the_pod_has_none(tmp_path: Path) -> None:
    record = yaml.safe_load(STATIC)
    words, lacks = asked_of(record, tmp_path)
    assert (lacks, "do not count" in words) == ([], False)
    del record["spec"]["cpus"], record["status"]["exclusive"]
    assert asked_of(record, tmp_path)[1] == ["spec.cpus", "status.exclusive"]
    assert asked_of(record, tmp_path, cpu="4.5")[1] == [], "its CPUs are not exclusive"


def test_check_answers_for_thousands_of_nodes_and_prints_some(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("{kind: MachineGroup, machine: dgx1-v100, count: 2000, namePrefix: a-}")
    done = run("check", PAIR, "--cluster", path)
    assert "2,000 of 2,000 nodes would take it" in done.stdout
    assert "… 1,980 more nodes would take it (-o wide lists all nodes)" in done.stdout
    assert run("check", PAIR, "--cluster", path, "-o", "wide").stdout.count("\na-") == 2000
    answer = json.loads(run("check", PAIR, "--cluster", path, "--output", "json").stdout)
    assert len({row["node"] for row in answer["nodes"]}) == 2000


def test_whole_gpus_that_a_node_still_counts_though_mig_splits_them(tmp_path: Path) -> None:
    """All commands say the same of it."""
    path = tmp_path / "cluster.yaml"
    pod = {"name": "m", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    documents: list[dict[str, Any]] = [
        {
            "kind": "MachineGroup",
            "machine": "h100-pcie-1",
            "count": 1,
            "namePrefix": "n-",
            "mig": {"strategy": "mixed", "profiles": ["1g.10gb", "1g.10gb"]},
        },
        {
            "kind": "Node",
            "metadata": {"name": "n-00"},
            "status": {"allocatable": {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "2"}},
        },
        {"kind": "Pod", "metadata": {"name": "waits"}, "spec": {"containers": [pod]}},
    ]
    path.write_text(yaml.safe_dump_all(documents))
    checked = run("check", path, "--cluster", path)
    assert "no node takes it: all GPUs of the node are split by MIG (1 node)\n" in checked.stdout
    for command in (("why", "waits"), ("waiting",)):
        message = run(*command, "--cluster", path)
        assert message.returncode == 1
        assert "no node takes it: all GPUs of the node are split by MIG" in message.stdout


def test_check_calls_things_by_their_name(tmp_path: Path) -> None:
    """What no node serves no node takes; shares and MIG instances are no GPUs."""
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "m"}]}}
    path = tmp_path / "pod.yaml"

    def message(resource: str, count: int, cluster: Path) -> Done:
        limits = {"limits": {resource: count}}
        pod["spec"] = {"containers": [{"name": "m", "resources": limits}]}
        path.write_text(yaml.safe_dump(pod))
        return run("check", path, "--cluster", cluster)

    unserved = message("nvidia.com/mig-7g.80gb", 1, CLUSTER)
    assert unserved.returncode == 1
    said_of_all = "no node takes it: node does not serve the requested GPU resource (8 nodes)"
    assert said_of_all in unserved.stdout
    shared = message("nvidia.com/gpu", 1000, ROOT / "examples" / "clusters" / "shared.yaml")
    assert "node has fewer GPU shares than requested" in shared.stdout


MIG_CLUSTER = ROOT / "examples" / "clusters" / "mig.yaml"
SLICES = ROOT / "manifests" / "samples" / "mig-slices.yaml"


def test_check_says_which_gpus_slices_may_be_of() -> None:
    done = run("check", SLICES, "--cluster", MIG_CLUSTER, "--output", "json")
    assert done.returncode == 0, done.stderr
    nodes = {row["node"]: row for row in json.loads(done.stdout)["nodes"]}
    assert (nodes["part-00"]["verdict"], nodes["part-00"]["outcomes"]) == ("guaranteed", [[0]])
    assert nodes["parts-00"]["verdict"] == "not-guaranteed"
    assert len(nodes["parts-00"]["outcomes"]) == 8 + 28
    assert "may hand out MIG instances without" in nodes["parts-00"]["message"]


SHARED_MEMORY = ROOT / "manifests" / "samples" / "shared-memory.yaml"


def test_check_says_how_much_memory_of_shared_gpus_is_in_use(tmp_path: Path) -> None:
    group = {"kind": "MachineGroup", "machine": "l40s-4", "count": 1, "namePrefix": "n-"}
    cluster, topology = tmp_path / "cluster.yaml", machine("l40s-4").topology("n-shown")
    shared = replace(topology, resources=(GpuResource("nvidia.com/gpu", "mps", 2),))
    share = DeviceId(f"{topology.gpus[1].uuid}::1")
    held = Allocation(PodUid("u"), "default", "runs", "main", "nvidia.com/gpu", (share,))
    record = encode(shared, Report("b", 1, allocations=(held,)))
    cluster.write_text(yaml.safe_dump_all([record, {**group, "sharing": {"replicas": 4}}]))
    done = run("check", SHARED_MEMORY, "--cluster", cluster)
    assert done.returncode == 0, done.stderr
    assert "GPU 1: 23034 of 46068 MiB used by 1 pod" in " ".join(done.stdout.split())


def _beside_gpus(path: Path, limits: dict[str, Any], *objects: dict[str, Any]) -> Path:
    """A file with four GPUs on a node, these objects, and a pod that waits for one of them."""
    group = {"kind": "MachineGroup", "machine": "l40s-4", "count": 1, "namePrefix": "c-"}
    message = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "waits"},
        "spec": {
            "containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 1, **limits}}}]
        },
        "status": {"phase": "Pending", "conditions": [{**condition, "message": message}]},
    }
    group |= next((each for each in objects if "kind" not in each), {})
    others = [each for each in objects if "kind" in each]
    path.write_text(yaml.safe_dump_all([group, *others, pod]))
    return path


def _node(**allocatable: str) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": "c-00"}, "status": {"allocatable": allocatable}}


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        pytest.param({"cpu": "4"}, False, id="a group has too few CPUs"),
        pytest.param({"cpu": "8"}, True, id="a group has enough"),
        pytest.param({"memory": "1Gi"}, True, id="what a group does not name is no limit"),
        pytest.param(_node(cpu="4"), False, id="a Node by hand has too few CPUs"),
        pytest.param(_node(memory="1Gi"), True, id="what a Node by hand does not name is no limit"),
    ],
)
def test_cpus_that_a_person_writes_down_count(
    tmp_path: Path, given: dict[str, Any], fits: bool
) -> None:
    path = _beside_gpus(tmp_path / "cluster.yaml", {"cpu": 8}, given)
    done = run("unblock", "waits", "--cluster", path)
    assert ("no pod has to be evicted: c-00 has a guaranteed placement" in done.stdout) == fits
    assert done.returncode == (0 if fits else 1)
    for command in (("why", "waits"), ("waiting",), ("check", path)):
        done = run(*command, "--cluster", path)
        assert done.returncode == (0 if fits else 1), done.stdout
        assert ("its request for cpu" in done.stdout) != fits


def test_check_warns_of_any_resource_that_no_node_serves(tmp_path: Path) -> None:
    whole = _node(cpu="64", memory="64Gi")
    whole["metadata"]["uid"] = "u"
    path = tmp_path / "cluster.yaml"
    for node, warned in ((whole, True), (_node(cpu="64"), False)):
        _beside_gpus(path, {"rdma/hca": 1}, node)
        done = run("check", path, "--cluster", path)
        assert ("warning: no node serves rdma/hca\n" in done.stderr) == warned


def test_check_does_not_warn_of_cpus_where_nodes_name_gpus_alone(tmp_path: Path) -> None:
    node = _node(**{"nvidia.com/gpu": "4"})  # the demo's file has such nodes
    node["metadata"]["annotations"] = {"gpu-topology.io/snapshot": "1"}
    path = _beside_gpus(tmp_path / "cluster.yaml", {"cpu": 8, "memory": "1Gi"}, node)
    done = run("check", path, "--cluster", path, "--strict")
    assert (done.returncode, done.stderr) == (0, "")


def test_kube_schedulers_own_words_are_quoted(tmp_path: Path) -> None:
    path = _beside_gpus(tmp_path / "cluster.yaml", {"cpu": 8})
    words = "0/1 nodes are available: 1 Insufficient cpu"
    assert f"It says: {words}\n" in run("why", "waits", "--cluster", path).stdout
    listed = run("waiting", "--cluster", path).stdout
    assert f"kube-scheduler finds no node: {words}" in " ".join(listed.split())
