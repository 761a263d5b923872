"""A cluster whose nodes have real kubelets, with the extender and the agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e import agentidentity
from tests.e2e.agents import Agent, run_plugin_pod
from tests.e2e.cluster import RealCluster
from tests.e2e.follower import Follower
from tests.e2e.kubelet import Kubelet, kubelet_users
from tests.programs import free_port
from topology import codec
from topology.machines import machine


@dataclass(frozen=True)
class RealNodes:
    """Pods created in ``cluster`` run on ``kubelets``; ``agents`` publish what they hold.

    ``follower`` knows every state that kubelets and records have had.
    """

    cluster: RealCluster
    kubelets: Mapping[str, Kubelet]
    agents: Mapping[str, Agent]
    follower: Follower

    def ready(self, node: str) -> bool:
        """Whether the node's record can be relied on."""
        record = codec.decode(self.cluster.record(node)) if self.cluster.record(node) else None
        report = record.report if record else None
        return report is not None and bool(report.conditions) and not report.not_ready


@contextmanager
def real_nodes(
    folder: Path, control_plane: Path, node: Path, machines: Mapping[str, str]
) -> Iterator[RealNodes]:
    """Such a cluster, with a node per entry of ``machines`` (node name to catalogue name).

    ``control_plane`` and ``node`` are the folders of their binaries. The agents learn the kubelets'
    configuration from the kubelets, over HTTPS.
    """
    with ExitStack() as stack:
        cluster = stack.enter_context(
            RealCluster(folder, control_plane, kubelet_users(list(machines)))
        )
        plane = cluster.control_plane
        kubelets, agents = {}, {}
        for name, kind in machines.items():
            topology = machine(kind).topology(name)
            port = free_port()
            kubelets[name] = stack.enter_context(
                Kubelet(plane, topology, node, folder / "nodes", serving(port))
            )
            run_plugin_pod(cluster.api, name)
        follower = stack.enter_context(Follower(plane, kubelets))
        agentidentity.install(plane)
        for name, kubelet in kubelets.items():
            flags = [f"--kubelet-address=127.0.0.1:{kubelet.port}", "--kubelet-insecure-tls"]
            socket = kubelet.socket
            agents[name] = stack.enter_context(
                Agent(plane, kubelet.topology, socket, folder, flags)
            )
        found = RealNodes(cluster, kubelets, agents, follower)
        for name in machines:
            cluster.until(lambda name=name: found.ready(name), f"the agent of {name} is ready")  # type: ignore[misc]
        yield found


def serving(port: int) -> dict[str, object]:
    """The part of a KubeletConfiguration that lets it serve on loopback to who may."""
    return {
        "enableServer": True,
        "address": "127.0.0.1",
        "port": port,
        "readOnlyPort": 0,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
        "authorization": {"mode": "Webhook"},
    }
