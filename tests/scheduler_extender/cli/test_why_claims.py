"""``gpu-topology why`` of pods with ResourceClaims, and of nodes with a DRA driver."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_extender.cli import main
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.kube.sinks import NODES_PATH, RECORDS_PATH, PodSink
from tests.commands import Done, asked
from tests.dranodes import (
    DRIVER,
    NODE,
    PUBLISHED,
    DraWorld,
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
from tests.nodes import bridged, pod
from tests.scheduler_extender.cli.kubecluster import Cluster
from topology import codec
from topology.core.report import Report
from topology.machines import machine

DRA = "/apis/resource.k8s.io/v1"
NVLINK = {"link": "nvlink"}
PAIRS = machine("a100-pcie-4-bridged").topology("train-07")


def why(*words: object) -> Done:
    return asked(main, "why", *words)


@pytest.fixture
def claiming(cluster: Cluster) -> Cluster:
    """A node of two pairs under DRA whose GPUs are published as 3, 1, 0, 2, one with a device
    plugin, and a pod that waits with a claim for two GPUs that are to be linked."""
    cluster.node(PAIRS)
    served = codec.encode(bridged(name=NODE), Report("boot", 1, allocatable=frozenset()))
    cluster.fake.put(RECORDS_PATH, served)
    cluster.fake.put(NODES_PATH, {"metadata": {"name": NODE}, "status": {"allocatable": {}}})
    published = a_slice(*map(device, PUBLISHED))
    for where, obj in (("deviceclasses", device_class()), ("resourceslices", published)):
        cluster.fake.put(f"{DRA}/{where}", msgspec.json.decode(obj))
    cluster.pod(with_claim("train", "g"), "ns")
    return cluster


def with_claim(name: str, claim: str, amount: str | None = "0", **asks: str) -> dict[str, Any]:
    manifest = pod(None, asks or NVLINK, name=name, uid=name)
    if amount is not None:
        limits = {"nvidia.com/gpu": amount}
        manifest["spec"]["containers"][0]["resources"] = {"limits": limits}
    manifest["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": claim}]
    return manifest


def asks_for(cluster: Cluster, *requests: dict[str, Any], alike: str = "") -> None:
    obj = msgspec.json.decode(asking("g", *requests, alike=alike))
    cluster.fake.put(f"{DRA}/namespaces/ns/resourceclaims", obj)


def test_a_pod_with_a_claim_of_its_own_reads_what_the_claim_gets(claiming: Cluster) -> None:
    asks_for(claiming, exactly(2))
    done = claiming.why("ns/train")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (
        "ns/train\n"
        "requests the GPUs of its claims: every two linked by NVLink (link=nvlink)\n"
        "no node takes it: the node's GPUs are not served by DRA (1 node); the next free GPUs "
        "do not meet "
        "link=nvlink (1 node)\n"
        "\n"
        "what would help\n"
        "  evictions; kubectl gpu-topology unblock ns/train shows a plan, if one exists\n"
        "\n"
        "notes\n"
        "  the pod's claims let kube-scheduler take the first free GPUs; gpu-topology claim "
        "writes a claim that names the suitable sets\n"
    )
    listed = asked(main, "waiting", "-n", "ns", "--kubeconfig", claiming.kubeconfig)
    assert "the GPUs of its claims link=nvlink" in " ".join(listed.stdout.split())
    assert "no node takes it" in listed.stdout
    asks_for(claiming, exactly(2), alike=f"{DRIVER}/pair")
    done = claiming.why("ns/train")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 2 nodes would take it" in done.stdout
    assert "nodes that would take it: node" in done.stdout
    row = json.loads(claiming.why("ns/train", "-o", "json").stdout)["nodes"][0]
    assert (row["node"], row["verdict"], row["outcomes"]) == (NODE, "guaranteed", [[2, 3]])


def test_of_two_pods_that_ask_the_same_waiting_names_the_one_whose_claim_has_gpus(
    claiming: Cluster,
) -> None:
    for name, gpus in (("second", (0, 1)), ("stranger", (2, 3))):
        held = msgspec.json.decode(claim(f"of-{name}", *gpus, pod=name))
        claiming.fake.put(f"{DRA}/namespaces/ns/resourceclaims", held)
    for name in ("first", "second"):
        claiming.pod(pod(2, NVLINK, name=name, uid=name), "ns")
    done = asked(main, "waiting", "-n", "ns", "-o", "json", "--kubeconfig", claiming.kubeconfig)
    takes = {row["pod"]: row["takes"] for row in json.loads(done.stdout)["pods"]}
    assert (takes["ns/first"], takes["ns/second"]) == (1, 2), "both may go to the plugin's node"


@pytest.mark.parametrize(
    "hidden", ["deviceclasses", "devicetaintrules", "resourceclaims", "resourceslices"]
)
def test_a_node_of_which_a_part_may_not_be_seen_has_nothing_free(
    claiming: Cluster, hidden: str
) -> None:
    """Without the claims all its GPUs seemed free to a tenant."""
    held = claim("held", 0, 1, 2, 3, pod="other")
    claiming.fake.put(f"{DRA}/namespaces/ns/resourceclaims", msgspec.json.decode(held))
    claiming.pod(pod(2, NVLINK, name="plain", uid="plain"), "ns")
    claiming.fake.refuse(403, None, path=f".*/{hidden}")
    node = json.loads(claiming.why("ns/plain", "-o", "json").stdout)
    assert {row["reason"] for row in node["nodes"] if row["node"] == NODE} == {"no-allocator"}
    assert node["notes"] == [
        f"you may not list {hidden}: this answer leaves out the devices of nodes with DRA"
    ]


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        pytest.param(
            [exactly(9)],
            "no free devices of the node match the pod's claims (1 node)",
            id="too many",
        ),
        pytest.param(
            [], "which GPUs the pod's claims get is unknown: a claim does not exist yet", id="none"
        ),
        pytest.param(
            [exactly(1, "device.driver.substring(1) == 'x'")],
            "which GPUs the pod's claims get is unknown: ",
            id="not read",
        ),
    ],
)
def test_why_says_that_a_claim_gets_nothing_or_that_it_is_unknown(
    claiming: Cluster, requests: list[dict[str, Any]], says: str
) -> None:
    if requests:
        asks_for(claiming, *requests)
    done = claiming.why("ns/train", "-o", "json")
    node = json.loads(done.stdout)
    assert says in node["headline"] + " ".join(row["note"] for row in node["nodes"])
    assert done.returncode == ("is unknown" not in says)


NAMELESS = {"metadata": {"name": DRIVER}, "spec": {}}
SPLIT = msgspec.json.decode(a_slice(device(0, consumesCounters=[{"counterSet": "c"}])))


@pytest.mark.parametrize(
    ("where", "obj", "says"),
    [
        pytest.param("deviceclasses", NAMELESS, "no DeviceClass has extendedRes", id="no name"),
        pytest.param(
            "resourceslices",
            slice_of(NODE, name="s", pool=NODE),
            "the node's DRA driver has published no GPUs",
            id="no driver",
        ),
        pytest.param("resourceslices", SPLIT, "device gpu-0 of a ResourceSlice has consumesCoun",
                     id="not followed"),
    ],
)  # fmt: skip
def test_what_keeps_a_node_with_dra_from_serving_is_reported(
    claiming: Cluster, where: str, obj: Any, says: str
) -> None:
    """kube-scheduler would send the pod nowhere, and why said that the node would take it; or that
    the node serves GPUs by DRA only, which is what it is to do."""
    obj = obj if isinstance(obj, dict) else msgspec.json.decode(obj)
    claiming.fake.put(f"{DRA}/{where}", obj)
    claiming.pod(pod(3, NVLINK, name="number", uid="number"))
    done = claiming.why("number")
    assert f"notes\n  {NODE}: {says}" in done.stdout
    assert says in claiming.asked("node", NODE).stdout


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        pytest.param(with_claim("p", "g", None), 'limit nvidia.com/gpu: "0"', id="not asked"),
        pytest.param(with_claim("p", "g", policy="preferred"), "every GPU meets", id="anything"),
    ],
)
def test_a_pod_whose_claims_are_not_judged_reads_why(
    claiming: Cluster, manifest: dict[str, Any], says: str
) -> None:
    claiming.pod(manifest, "ns")
    done = claiming.why("ns/p")
    assert done.returncode == 2
    assert says in done.stderr
    listed = asked(main, "waiting", "-n", "ns", "-o", "name", "--kubeconfig", claiming.kubeconfig)
    assert listed.stdout.split() == ["pod/train"]


@pytest.mark.parametrize("written", [False, True], ids=["by hand", "snapshot"])
def test_a_file_does_not_judge_what_claims_get(written: bool, tmp_path: Path) -> None:
    """A cluster file has no claims, and a snapshot is one."""
    manifest = with_claim("train", "g")
    manifest["metadata"]["namespace"] = "ns"
    records = [codec.encode(bridged(name=NODE), Report())]
    file = tmp_path / "cluster.yaml"
    file.write_text("\n---\n".join(map(json.dumps, [*records, {"kind": "Pod", **manifest}])))
    if written:
        file.write_bytes(b"".join(cluster_file(world_with(manifest).cluster)))
    done = why("ns/train", "--cluster", file)
    assert done.returncode == 2
    assert "pod ns/train requests GPUs through claims: not evaluated: " in done.stderr
    listed = asked(main, "waiting", "-A", "--cluster", file, "-o", "json")
    [row] = json.loads(listed.stdout)["pods"]
    assert (row["pod"], row["request"]) == ("ns/train", "the GPUs of its claims link=nvlink")
    assert row["reason"].startswith("not evaluated: ")
    assert (listed.returncode, row["nodes"]) == (0, None)


def world_with(manifest: dict[str, Any]) -> DraWorld:
    """A node with DRA, and a pod."""
    world = two_pairs()
    PodSink(world.cluster).apply(raw(manifest))
    return world


def test_pods_that_share_a_claim_have_its_gpus(claiming: Cluster) -> None:
    """The answer was to delete each of them, since no claim was known to have GPUs."""
    sharers = ("p1", "p2")
    shared = claim("s", 1, 0, pods=sharers)
    claiming.fake.put(f"{DRA}/namespaces/ns/resourceclaims", msgspec.json.decode(shared))
    for name in sharers:
        manifest = with_claim(name, "s")
        manifest["spec"]["nodeName"] = NODE
        claiming.pod({**manifest, "status": {"phase": "Running"}}, "ns")
    done = claiming.why("ns/p2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nit got GPUs 0,1, which meet its constraints\n")
    for where in (NODES_PATH, RECORDS_PATH):
        claiming.fake.remove(f"{where}/{PAIRS.name}")
    claiming.pod(pod(4, name="w", uid="w"), "ns")
    done = claiming.why("ns/w")
    assert "node: 2 of 4 GPUs are free (2, 3); GPUs 0,1 are held by ns/claim/s\n" in done.stdout
    assert "  ns/p1 and ns/p2 on node end: the node takes the pod then\n" in done.stdout


def test_a_gpu_that_a_taint_withholds_is_no_matter_of_a_kubelet(claiming: Cluster) -> None:
    tainted = device(2, taints=[{"key": "k", "effect": "NoSchedule"}])
    published = a_slice(device(3), device(1), tainted)
    claiming.fake.put(f"{DRA}/resourceslices", msgspec.json.decode(published))
    claiming.pod(pod(4, name="w", uid="w"), "ns")
    assert "GPU 2 is in no ResourceSlice, or tainted" in claiming.why("ns/w").stdout
    shown = asked(main, "node", NODE, "-o", "json", "--kubeconfig", claiming.kubeconfig)
    rows = {row["gpu"]: row["problem"] for row in json.loads(shown.stdout)["devices"]}
    assert rows == dict.fromkeys((1, 3)) | dict.fromkeys((0, 2), "in no ResourceSlice, or tainted")


def test_what_kubectl_printed_of_a_node_with_dra_is_no_busy_node(tmp_path: Path) -> None:
    """It has no ResourceSlices, and a Node that advertises no GPUs."""
    node = {"metadata": {"name": NODE, "uid": "u"}, "status": {"allocatable": {"cpu": "8"}}}
    served = codec.encode(bridged(name=NODE), Report("boot", 1, allocatable=frozenset()))
    asks = {"kind": "Pod", **pod(2, NVLINK, name="w", uid="w")}
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "items": [{"kind": "Node", **node}, served, asks]}))
    done = why("w", "--cluster", file)
    words = "neither a device plugin nor a DRA driver serves the node's GPUs (1 node)"
    assert f"no node takes it: {words}\n" in done.stdout
