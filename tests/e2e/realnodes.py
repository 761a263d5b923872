"""A cluster whose nodes have real kubelets, with the extender and an agent for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cluster import RealCluster
from tests.e2e.kubelet import Kubelet, kubelet_users
from tests.e2e.standin_agent import StandInAgent
from topology.machines import machine


@dataclass(frozen=True)
class RealNodes:
    """Pods created in ``cluster`` run on ``kubelets``; ``agent`` publishes what they hold."""

    cluster: RealCluster
    kubelets: Mapping[str, Kubelet]
    agent: StandInAgent


@contextmanager
def real_nodes(
    folder: Path, control_plane: Path, node: Path, machines: Mapping[str, str]
) -> Iterator[RealNodes]:
    """Such a cluster, with a node per entry of ``machines`` (node name to catalogue name).

    ``control_plane`` and ``node`` are the folders of their binaries.
    """
    with ExitStack() as stack:
        cluster = stack.enter_context(
            RealCluster(folder, control_plane, kubelet_users(list(machines)))
        )
        kubelets = {
            name: stack.enter_context(
                Kubelet(cluster.control_plane, machine(kind).topology(name), node, folder / "nodes")
            )
            for name, kind in machines.items()
        }
        agent = stack.enter_context(StandInAgent(cluster.control_plane, kubelets))
        yield RealNodes(cluster, kubelets, agent)
