"""Claims for GPUs while parts die between allocation and bind, devices get tainted, or pods come in
bursts: kube-apiserver, kube-scheduler and kube-controller-manager 1.37, two replicas of the
extender.

Each test has nodes and pods of its own.
"""

import asyncio
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chaos.network import Network
from tests.e2e.chaos.replicas import ReplicatedCluster
from tests.e2e.cluster import PODS
from tests.e2e.conftest import NEWER_DRA
from tests.e2e.drakubelet import API, DRIVER, device_class
from tests.e2e.draslices import CLAIMS, add_node, claimed, claims_of, free, placement

pytestmark = pytest.mark.e2e
PAIRS = ([0, 1], [2, 3])
NVLINK = {"link": "nvlink"}


@pytest.fixture(scope="module")
def real(
    dra_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicatedCluster]:
    folder = tmp_path_factory.mktemp("dra")
    with Network() as network:
        cluster = ReplicatedCluster(folder, dra_binaries, network)
        # From 1.37 on kube-apiserver announces no address of this machine's own to others.
        cluster.control_plane.apiserver_flags.append("--endpoint-reconciler-type=none")
        with cluster:
            cluster.create(f"{API}/deviceclasses", device_class())
            cluster.control_plane.start_controllers(["resourceclaim-controller"])
            yield cluster


def ask(real: ReplicatedCluster, name: str, gpus: int, node: str, linked: bool = True) -> None:
    """Create a pod that may be on one node only."""
    real.add_pod(
        name, gpus, NVLINK if linked else {}, nodeSelector={"kubernetes.io/hostname": node}
    )


def reaches_bind(real: ReplicatedCluster, pod: str, node: str) -> None:
    """Create a pod for a pair and stop its bind on the way to the extender: the claim has devices,
    and nobody has bound the pod."""
    held = threading.Event()

    def hold(_uid: str) -> None:
        real.service.hold()
        held.set()

    real.service.on_bind = hold
    ask(real, pod, 2, node)
    real.until(held.is_set, f"the bind of {pod} is on its way")
    real.service.on_bind = None
    assert claimed(real, pod) in PAIRS
    assert "nodeName" not in real.pod(pod)["spec"]


def keep(real: ReplicatedCluster, pods: Sequence[str]) -> None:
    """Each pod has what its placement says, no GPU has two claims, and no claim is left over."""
    for pod in pods:
        assert placement(real, pod)["sets"] == [claimed(real, pod)], pod

    def allocated() -> list[tuple[dict[str, Any], list[dict[str, str]]]]:
        """The devices that claims have, each with who uses it."""
        return [
            (device, claim["status"].get("reservedFor") or [])
            for claim in real.api.get(CLAIMS).json()["items"]
            if (allocation := claim.get("status", {}).get("allocation"))
            for device in allocation["devices"]["results"]
        ]

    def leaked() -> bool:
        found = real.api.get(PODS).json()["items"]
        bound = {each["metadata"]["uid"] for each in found if each["spec"].get("nodeName")}
        return any(not bound & {user["uid"] for user in users} for _, users in allocated())

    real.until(lambda: not leaked(), "each device that a claim has is a bound pod's")
    devices = [(device["pool"], device["device"]) for device, _ in allocated()]
    assert len(set(devices)) == len(devices), sorted(devices)


def test_the_leader_dies_between_allocation_and_bind(real: ReplicatedCluster) -> None:
    add_node(real, "led", (2, 3, 0, 1))
    real.until(lambda: all(map(real.ready, real.replicas)), "both replicas are ready")
    reaches_bind(real, "survivor", "led")
    leader = real.leader()
    assert leader.process is not None
    leader.process.stop(signal.SIGKILL)
    ask(real, "next", 2, "led")
    real.service.mend()
    assert {real.node_of(pod) for pod in ("survivor", "next")} == {"led"}
    assert real.leader() is not leader
    keep(real, ["survivor", "next"])
    real.start(leader)


def test_the_leader_dies_before_its_answer_has_arrived(real: ReplicatedCluster) -> None:
    """kube-scheduler deletes the claim, though the pod is bound: the pod can never start. Its GPUs
    are promised to nobody else until somebody deletes it."""
    add_node(real, "unheard", (2, 3, 0, 1))
    real.until(lambda: all(map(real.ready, real.replicas)), "both replicas are ready")

    def hold_the_answer(_uid: str) -> None:
        asyncio.get_running_loop().call_soon(real.service.hold)

    real.service.on_bind = hold_the_answer
    ask(real, "unheard", 2, "unheard")
    real.node_of("unheard")
    real.service.on_bind = None
    leader = real.leader()
    assert leader.process is not None
    leader.process.stop(signal.SIGKILL)
    real.service.drop()
    real.service.mend()
    real.until(lambda: not claims_of(real, "unheard"), "kube-scheduler has deleted the claim")
    pods = ["after-0", "after-1"]
    for pod in pods:
        ask(real, pod, 2, "unheard")
    real.unschedulable(pods[-1])
    real.remove_pod("unheard")
    assert [real.node_of(pod) for pod in pods] == ["unheard"] * 2
    keep(real, pods)
    real.start(leader)


@pytest.mark.parametrize(
    "arrives",
    [
        pytest.param(True, id="the bind arrives"),
        pytest.param(False, id="the bind is lost", marks=NEWER_DRA),
    ],
)
def test_kube_scheduler_dies_between_allocation_and_bind(
    real: ReplicatedCluster, arrives: bool
) -> None:
    node = f"scheduled-{arrives}".lower()
    add_node(real, node, (2, 3, 0, 1))
    pods = [f"{node}-{i}" for i in range(2)]
    reaches_bind(real, pods[0], node)
    real.control_plane.signal("kube-scheduler", signal.SIGKILL)
    real.control_plane.stop_scheduler()
    if not arrives:
        real.service.drop()
    real.service.mend()
    real.start_scheduler()
    ask(real, pods[1], 2, node)
    assert [real.node_of(pod) for pod in pods] == [node, node]
    keep(real, pods)


@NEWER_DRA
def test_a_tainted_device_is_promised_to_no_pod_that_waits(real: ReplicatedCluster) -> None:
    add_node(real, "sick", (0, 1, 2, 3))
    ask(real, "holder", 4, "sick", linked=False)
    real.node_of("holder")
    ask(real, "waits", 2, "sick")
    real.unschedulable("waits")
    selected = {"driver": DRIVER, "pool": "sick", "device": "gpu-1"}
    taint = {"key": "example.com/sick", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "sick"}, "spec": {"deviceSelector": selected, "taint": taint}}
    real.create(f"{API}/devicetaintrules", rule)

    def passed_over() -> bool:
        return "the next free GPUs do not meet link=nvlink" in real.unschedulable("waits")

    free(real, "holder")
    real.until(passed_over, "GPU 1 is passed over: the next are 0 and 2")
    ask(real, "plain", 3, "sick", linked=False)
    assert real.node_of("plain") == "sick"
    assert claimed(real, "plain") == [0, 2, 3]
    real.until(lambda: not passed_over(), "no GPU is left")
    free(real, "plain")
    real.until(passed_over, "GPU 1 is passed over")
    real.api.delete(f"{API}/devicetaintrules/sick").raise_for_status()
    assert real.node_of("waits") == "sick"
    assert claimed(real, "waits") == [0, 1]
    keep(real, ["waits"])


def vetoes(real: ReplicatedCluster) -> int:
    """How many binds the leader has refused for the devices of claims."""
    with real.people(real.leader().metrics_port) as metrics:
        lines = metrics.get("/metrics").text.splitlines()
    return int(sum(float(x.split()[1]) for x in lines if x.startswith("gpu_topology_dra_vetoes_")))


def test_a_burst_of_pods_gets_all_that_fits(real: ReplicatedCluster) -> None:
    """Pairs and single GPUs come at once, which take the devices before each other."""
    chosen = random.Random(7)
    orders = {f"burst-{i}": chosen.sample(range(4), 4) for i in range(15)}
    for name, order in orders.items():
        add_node(real, name, order)
    terms = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [*orders]}]
    required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    before = vetoes(real)
    wanted = {f"burst-{i}": 2 - i % 2 for i in range(40)}
    for pod, gpus in wanted.items():
        real.add_pod(pod, gpus, NVLINK if gpus == 2 else {}, affinity=affinity)

    def bound() -> dict[str, str]:
        found = {each["metadata"]["name"]: each for each in real.api.get(PODS).json()["items"]}
        return {p: on for p in wanted if (on := found[p]["spec"].get("nodeName"))}

    def left(node: str, placed: dict[str, str]) -> list[int]:
        """The free GPUs of a node, in the order of the driver."""
        taken = {gpu for pod, on in placed.items() if on == node for gpu in claimed(real, pod)}
        return [gpu for gpu in orders[node] if gpu not in taken]

    def settled() -> bool:
        """Whether no pod that waits fits anywhere."""
        placed = bound()
        waiting = {wanted[pod] for pod in wanted if pod not in placed}
        free_gpus = [left(node, placed) for node in orders] if waiting else []
        singles = 1 in waiting and any(free_gpus)
        return not singles and not (2 in waiting and any(sorted(f[:2]) in PAIRS for f in free_gpus))

    real.until(settled, "no pod that waits fits anywhere")
    placed = bound()
    print(f"\n{len(placed)} of {len(wanted)} pods are bound, {vetoes(real) - before} vetoes")
    pairs = [pod for pod in placed if wanted[pod] == 2]
    assert all(claimed(real, pod) in PAIRS for pod in pairs)
    keep(real, pairs)
