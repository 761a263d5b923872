"""The agent beside a real kubelet: what it publishes follows what the kubelet does, none missed."""

import re
import time
from random import Random
from statistics import median
from typing import Any

import httpx
import pytest

from tests.e2e.building import NEWEST
from tests.e2e.pods import PODS, gpu_pod
from tests.e2e.realnodes import RealNodes
from topology import codec

pytestmark = pytest.mark.e2e
MACHINES = {"dgx1": "dgx1-v100"}
NODE = "dgx1"
STEPS = 40


def _holders(nodes: RealNodes) -> dict[str, int]:
    """Devices by pod, as published."""
    record = codec.decode(nodes.cluster.record(NODE))
    found: dict[str, int] = {}
    for a in record.report.allocations if record.report else ():
        found[a.pod] = found.get(a.pod, 0) + len(a.device_ids)
    return found


def _pods(nodes: RealNodes) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = nodes.cluster.api.get(PODS).json()["items"]
    return items


def _remove(nodes: RealNodes, name: str) -> None:
    answer = nodes.cluster.api.delete(f"{PODS}/{name}", params={"gracePeriodSeconds": 1})
    assert answer.is_success, answer.text


def _empty(nodes: RealNodes) -> None:
    for pod in _pods(nodes):
        if "deletionTimestamp" not in pod["metadata"]:  # else it may be gone by now
            _remove(nodes, pod["metadata"]["name"])
    nodes.cluster.until(
        lambda: not _pods(nodes) and _holders(nodes) == {}, "no pod is left, the node is empty"
    )


def _at_rest(nodes: RealNodes) -> bool:
    """Whether every pod is through its admission, and none is on its way out."""
    return not any(
        pod["status"]["phase"] == "Pending" or "deletionTimestamp" in pod["metadata"]
        for pod in _pods(nodes)
    )


def test_the_kubelets_configuration_was_had_from_the_kubelet(real_nodes: RealNodes) -> None:
    config = codec.decode(real_nodes.cluster.record(NODE)).topology.allocator
    assert config.topology_manager_policy == "none"
    assert (config.cpu_manager_policy, config.memory_manager_policy) == ("none", "None")
    assert (config.policy, config.plugin_version) == ("best-effort", NEWEST)


def test_every_allocation_and_release_is_followed(real_nodes: RealNodes) -> None:
    """Pods of one to three containers come, are deleted or end by themselves."""
    random = Random(5)
    alive: list[str] = []
    for step in range(STEPS):
        if alive and (len(alive) > 4 or random.random() < 0.4):
            _remove(real_nodes, alive.pop(random.randrange(len(alive))))
        else:
            name = f"p{step}"
            ends = random.choice([None, None, 1.5])
            pod = gpu_pod(
                name,
                random.choice([[1], [2], [1, 1], [1, 0]]),
                init=random.choice([[], [], [1]]),
                node=NODE,
                finish_after=ends,
            )
            real_nodes.cluster.create(PODS, pod)
            if ends is None:
                alive.append(name)
        time.sleep(random.uniform(0.1, 0.8))
        if step % 4 == 3:  # whatever lasts is published
            real_nodes.cluster.until(
                lambda: _at_rest(real_nodes) and real_nodes.follower.followed(NODE),
                "the record has what the kubelet shows",
            )
    _empty(real_nodes)
    # How soon is told, and not judged: on a slow machine everything takes its time.
    lags = real_nodes.follower.lags()
    if lags:
        print(f"{len(lags)} states: lag median {median(lags):.2f} s, most {max(lags):.2f} s")
    metrics = real_nodes.agents[NODE].metrics()
    found = re.search(r'report_seconds_bucket\{le="1.0"\} (\S+)', metrics)
    total = re.search(r"report_seconds_count (\S+)", metrics)
    assert found is not None
    assert total is not None
    print(f"from bind to record within 1 s: {found[1]} of {total[1]} pods")
    assert float(total[1]) > 0


def test_a_restarted_kubelet_and_a_killed_agent_release_no_pod(real_nodes: RealNodes) -> None:
    _empty(real_nodes)
    pods = {f"stay-{i}": n for i, n in enumerate((1, 2, 1))}
    for name, count in pods.items():
        real_nodes.cluster.create(PODS, gpu_pod(name, [count], node=NODE))
        time.sleep(0.3)
    until = real_nodes.cluster.until
    until(lambda: _holders(real_nodes) == pods, "all are shown")
    until(
        lambda: all(p["status"]["phase"] == "Running" for p in _pods(real_nodes)),
        "all run",
    )
    agent, kubelet = real_nodes.agents[NODE], real_nodes.kubelets[NODE]
    seen = len(real_nodes.reports(NODE))

    kubelet.restart_kubelet()
    time.sleep(3)
    agent.kill()
    agent.start()
    until(lambda: "nvml_up 1.0" in _metrics(real_nodes), "the agent is back")
    agent.kill()
    kubelet.restart_kubelet()
    last = codec.decode_report(real_nodes.cluster.record(NODE)["status"]).sequence
    agent.start()
    until(
        lambda: real_nodes.ready(NODE) and real_nodes.follower.reports[NODE][-1].sequence > last,
        "the next agent has published",
    )
    time.sleep(3)

    reports = real_nodes.reports(NODE)
    later = reports[seen:]
    held = [{a.pod: len(a.device_ids) for a in report.allocations} for report in later]
    assert held, "nothing was published after the restarts"
    assert all(h == pods for h in held), held
    numbers = [report.sequence for report in reports]
    assert numbers == sorted(numbers)
    _empty(real_nodes)


def _metrics(nodes: RealNodes) -> str:
    try:
        return nodes.agents[NODE].metrics()
    except httpx.TransportError:  # it starts
        return ""
