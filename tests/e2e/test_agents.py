"""Agents as real processes with bound tokens: killed, cut off, rebooted, the record ends right."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from scheduler_extender.cli import main
from tests.commands import asked
from tests.e2e import agentidentity
from tests.e2e.agents import Agent
from tests.e2e.cluster import PODS, RealCluster
from tests.e2e.nvidiastack import run_plugin_pod
from tests.fakes.kubelet import GPU, FakeKubelet
from topology import codec
from topology.codec import Record
from topology.core.graph import NodeTopology
from topology.core.report import IdleAllocation, Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
MACHINES = {"n1": "dgx1-v100", "n2": "a100-pcie-4-bridged", "n3": "l40s-4"}
NVLINK = {"link": "nvlink"}


def hand_out(kubelet: FakeKubelet, topology: NodeTopology) -> None:
    """Let a kubelet hand out the GPUs of a machine, with the NUMA nodes that a plugin names."""
    kubelet.numa = {str(gpu.uuid): gpu.topology_nodes or () for gpu in topology.gpus}
    kubelet.allocatable(*(str(gpu.uuid) for gpu in topology.gpus))


class Site:
    """Three nodes, each with a fake kubelet and driver, and a real agent between them."""

    def __init__(self, real: RealCluster, folder: Path, stack: ExitStack) -> None:
        self.real = real
        self.agents: dict[str, Agent] = {}
        self.kubelets: dict[str, FakeKubelet] = {}
        agentidentity.install(real.control_plane)
        for name, kind in MACHINES.items():
            topology = machine(kind).topology(name)
            real.add_node(name, len(topology.gpus))
            run_plugin_pod(real.api, name)
            # Not pytest's folder: a path to a unix socket has at most 107 bytes.
            socket = Path(tempfile.mkdtemp(prefix="agents-"))
            stack.callback(shutil.rmtree, socket)
            kubelet = self.kubelets[name] = stack.enter_context(FakeKubelet(socket))
            hand_out(kubelet, topology)
            flags = ["--topology-manager-policy=none"]
            self.agents[name] = stack.enter_context(
                Agent(real.control_plane, topology, kubelet.socket, folder, flags)
            )
        for name in MACHINES:
            real.until(lambda name=name: self.ready(name), f"{name} is published")  # type: ignore[misc]

    def record(self, node: str) -> Record | None:
        """A node's record as it stands."""
        found = self.real.record(node)
        return codec.decode(found) if found else None

    def report(self, node: str) -> Report:
        """A node's report as it stands, an empty one where there is none."""
        record = self.record(node)
        return (record.report if record else None) or Report()

    def ready(self, node: str) -> bool:
        """Whether its record can be relied on."""
        report = self.report(node)
        return bool(report.conditions) and not report.not_ready

    def holders(self, node: str) -> dict[str, int]:
        """Devices by pod, as published."""
        return {a.pod: len(a.device_ids) for a in self.report(node).allocations}

    def admit(self, node: str, pod: str, *positions: int) -> None:
        """The node's kubelet gives a pod its GPUs."""
        gpus = self.agents[node].nvml.topology.gpus
        ids = [str(gpus[p].uuid) for p in positions]
        self.kubelets[node].show("default", pod, {"main": {GPU: ids}})

    def end(self, node: str, pod: str) -> None:
        """A pod has done its work."""
        status = {"status": {"phase": "Succeeded"}}
        self.real.patch(f"{PODS}/{pod}/status", status)
        self.kubelets[node].hide(pod)


@pytest.fixture(scope="module")
def site(real: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(real, tmp_path_factory.mktemp("agents"), stack)


def test_a_pod_that_rests_is_listed_and_an_agents_restart_forgets_nothing(site: Site) -> None:
    """The record of an agent that has watched for two hours; the next agent takes over from it."""
    site.real.add_pod("rests", 1, nodeName="n1")
    site.admit("n1", "rests", 2)
    site.real.until(lambda: site.holders("n1") == {"rests": 1}, "rests is shown")
    site.agents["n1"].stop()
    before, now = site.report("n1"), datetime.now(UTC)
    since = f"{now - timedelta(hours=2):%Y-%m-%dT%H:00:00Z}"
    idle = tuple(
        IdleAllocation(a.pod_uid, a.container, a.resource, since) for a in before.allocations
    )
    site.real.put_report("n1", replace(before, idle=idle, observed_at=now.isoformat()))
    site.agents["n1"].start()
    site.real.until(
        lambda: (now := site.report("n1")).sequence > before.sequence and now.idle == idle,
        "the next agent has it from the record",
    )
    assert listed_idle(site) == ["default/rests"]
    assert "gpu_topology_agent_idle_since_timestamp_seconds{" in site.agents["n1"].metrics()
    site.agents["n1"].nvml.utilisation(2, 40)
    site.real.until(lambda: site.report("n1").idle == (), "rests works")
    assert listed_idle(site) == []
    site.end("n1", "rests")
    site.real.until(lambda: site.holders("n1") == {}, "n1 is empty")


def listed_idle(site: Site) -> list[str]:
    """The idle pods, as an administrator lists them."""
    kubeconfig = site.real.control_plane.kubeconfig("admin")
    done = asked(main, "idle", "-A", "-o", "json", "--kubeconfig", kubeconfig)
    assert done.returncode == 0, done.stderr
    return [each["pod"] for each in json.loads(done.stdout)["idle"]]


def test_a_rebooted_node_with_other_gpus_lets_a_waiting_pod_in(site: Site) -> None:
    site.real.add_pod("quad", 4, {**NVLINK, "gpu-model": "H100*"})
    site.real.unschedulable("quad")
    other = machine("hgx-h100-4").topology("n3")
    agent = site.agents["n3"]
    hand_out(site.kubelets["n3"], other)
    agent.reboot(other)

    def published() -> bool:
        record = site.record("n3")
        return record is not None and record.topology.gpus == other.gpus and site.ready("n3")

    site.real.until(published, "n3 has other GPUs")
    assert site.real.node_of("quad") == "n3"
    assert site.report("n3").boot_id == agent.boot_id
    site.admit("n3", "quad", 0, 1, 2, 3)
    site.real.until(lambda: site.holders("n3") == {"quad": 4}, "quad is shown")


def test_a_pod_deleted_by_force_lets_the_next_one_in(site: Site) -> None:
    """Its kubelet never showed it; the agent's word that it knew of the deletion frees its GPUs."""
    site.real.add_pod("forced", 4, nodeName="n2")
    site.real.add_pod("pair", 2, {**NVLINK, "gpu-model": "A100*"})
    site.real.unschedulable("pair")
    before = site.report("n2")
    last = int(site.real.pod("forced")["metadata"]["resourceVersion"])
    site.real.remove_pod("forced")

    def known() -> bool:
        return bool(site.report("n2").knew_pods_at(last + 1))

    site.real.until(known, "n2's agent knows of the deletion")
    assert site.real.node_of("pair") == "n2"
    assert site.report("n2").sequence > before.sequence
    site.admit("n2", "pair", 0, 1)
    site.end("n2", "pair")
    site.real.until(lambda: site.holders("n2") == {}, "n2 is empty")


def test_an_outage_of_the_api_server_ends_right(site: Site) -> None:
    site.real.add_pod("all", 8, nodeName="n1")
    site.real.add_pod("waits", 8, NVLINK | {"shape": "connected"})
    site.real.unschedulable("waits")
    before = site.report("n1").sequence
    site.real.control_plane.stop_apiserver()
    site.admit("n1", "all", *range(8))
    kubelet = site.kubelets["n1"]
    asked = kubelet.calls["List"]
    site.real.until(lambda: kubelet.calls["List"] > asked + 10, "the agent goes on meanwhile")
    site.real.control_plane.start_apiserver()
    site.real.until(lambda: site.holders("n1") == {"all": 8}, "all is shown")
    assert site.report("n1").sequence > before
    site.real.until(lambda: all(map(site.ready, MACHINES)), "all records can be relied on")
    # The scheduler's own watches come back when they will, a minute later or so: not ours to wait.
    site.real.restart_scheduler()
    site.real.add_pod("probe", 0)
    site.real.node_of("probe")
    site.end("n1", "all")
    site.real.until(lambda: site.holders("n1") == {}, "n1 is empty")
    assert site.real.node_of("waits") == "n1"
