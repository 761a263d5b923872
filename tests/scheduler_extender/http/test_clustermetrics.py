"""GPUs and nodes by state, what can still be promised, what was decided: for Prometheus."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from prometheus_client import generate_latest

from scheduler_extender import verbs
from scheduler_extender.explain.gpustates import node_state
from scheduler_extender.http.clustermetrics import gpu_states, state_of
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.serving import in_memory
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import bridged, pcie, pod, switched
from tests.scheduler_extender.evictions.scenes import NVLINKED, waiting
from tests.scheduler_extender.serving import Clock
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Condition, Health, Report
from topology.core.requests import gpu_request


def held(node: NodeTopology, positions: Sequence[int]) -> Report:
    """A report that shows one pod with these GPUs."""
    ids = tuple(DeviceId(node.gpus[p].uuid) for p in positions)
    pods = (Allocation(PodUid("p"), "team", "p", "main", "nvidia.com/gpu", ids),) if ids else ()
    return Report("boot", 1, allocations=pods)


def cluster_of(*records: tuple[NodeTopology, Report]) -> Cache:
    cluster = Cache(Clock(), Settings(stale_after=None, all_pods_known=False))
    for node, report in records:
        cluster.put_record(node, report)
    return cluster


@pytest.mark.parametrize(
    ("node", "holds", "states"),
    [
        pytest.param(switched(4), [], {"free": 4}, id="free"),
        pytest.param(switched(4), [0], {"free": 3, "in-use": 1}, id="one in use"),
        pytest.param(bridged(4), [0], {"free": 2, "stranded": 1, "in-use": 1}, id="a pair is free"),
        pytest.param(bridged(4), [0, 2], {"stranded": 2, "in-use": 2}, id="no pair is left"),
        pytest.param(pcie(4), [0], {"free": 3, "in-use": 1}, id="no NVLinks, nothing stranded"),
    ],
)
def test_gpus_by_state(node: NodeTopology, holds: list[int], states: dict[str, int]) -> None:
    cluster = cluster_of((node, held(node, holds)))
    assert gpu_states(node_state(cluster.node_info(node.name))) == states


def test_sick_and_unknown_gpus_are_not_free() -> None:
    node = switched(4)
    sick = replace(held(node, []), health=(Health(node.gpus[0].uuid, False, "Xid"),))
    info = cluster_of((node, sick)).node_info(node.name)
    assert gpu_states(node_state(info)) == {"free": 3, "sick": 1}
    silent = replace(held(node, []), conditions=(Condition("Ready", False, "KubeletSilent"),))
    assert state_of(cluster_of((node, silent)).node_info(node.name)) == "not-ready"


def shown(cluster: Cache) -> dict[str, float]:
    """Every sample of the cluster's figures, by its name and labels."""
    metrics = Metrics()
    metrics.watch(cluster)
    lines = generate_latest(metrics.registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name.removeprefix("gpu_topology_"): float(value) for name, value in pairs}


def test_pods_whose_gpus_lie_apart_are_counted_on_all_nodes() -> None:
    # Of four bridged GPUs, 0-1 and 2-3 are pairs, and each pair is on a NUMA node. Without NVLinks
    # none can be missing.
    nodes = (bridged(4, "a"), [0, 2]), (bridged(4, "b"), [2, 3]), (pcie(4, "c"), [1, 2])
    figures = shown(cluster_of(*((node, held(node, holds)) for node, holds in nodes)))
    spread = {name: n for name, n in figures.items() if "spread_pods" in name}
    assert spread == {
        'spread_pods{lacks="nvlink"}': 1,
        'spread_pods{lacks="numa"}': 2,
    }


def test_what_is_decided_is_counted() -> None:
    linked, plain = switched(4, "linked"), pcie(4, "plain")
    service = in_memory(cluster_of((linked, held(linked, [])), (plain, held(plain, []))))
    cluster = service.cluster
    before = shown(cluster)
    assert before['rejections_total{reason="links"}'] == 0
    assert before['gpus{state="free"}'] == 8
    assert before['nodes{state="ready"}'] == 2
    pair = msgspec.convert(pod(2, {"link": "nvlink"}, uid="u1"), Pod)
    service.saw(pair)
    assert verbs.filter_nodes(cluster, pair, ["linked", "plain"]).node_names == ["linked"]
    meta = pair.metadata
    args = BindingArgs(meta.name, meta.namespace, meta.uid, NodeName("linked"))
    verbs.bind(cluster, service.binder, args, lambda: "2026-01-01T00:00:00Z")
    after = shown(cluster)
    assert after['rejections_total{reason="links"}'] == 1
    assert after['placements_total{verdict="guaranteed"}'] == 1
    assert after['placements_total{verdict="none"}'] == 0
    assert after['gpus{state="assumed"}'] == 2
    assert after['gpus{state="free"}'] == 6


def test_waiting_pods_are_counted_by_reason() -> None:
    pcie8, switched4 = pcie(8, "plain"), switched(4, "linked")
    cluster = cluster_of((pcie8, held(pcie8, [])), (switched4, held(switched4, [0])))
    for number in range(3):
        cluster.put_pod(waiting(f"quad-{number}", gpu_request(4, NVLINKED)))
    cluster.put_pod(waiting("fits", gpu_request(2, NVLINKED)))
    cluster.put_pod(waiting("huge", gpu_request(16)))
    found = {
        name.split('"')[1]: value
        for name, value in shown(cluster).items()
        if name.startswith("waiting_pods{") and value
    }
    assert found == {"busy": 3, "none": 1, "too-few-gpus": 1}


@pytest.mark.parametrize(("got", "kept", "broken"), [([0, 1], 1, 0), ([1, 2], 0, 1)])
def test_promises_kept_and_broken_stand_beside_each_other(
    got: list[int], kept: int, broken: int
) -> None:
    node = bridged(4)
    cluster = cluster_of((node, held(node, [])))
    metrics = Metrics()
    metrics.watch(cluster)
    pair = waiting("p", gpu_request(2, NVLINKED))
    cluster.put_pod(replace(pair, node=node.name, promised=NVLINKED, survives_endings=True))
    cluster.put_record(node, replace(held(node, got), sequence=2))
    value = metrics.registry.get_sample_value
    assert value("gpu_topology_promises_kept_total") == kept
    assert value("gpu_topology_mispredictions_total", {"kind": "promise-broken"}) == broken
