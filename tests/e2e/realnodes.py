"""A cluster whose nodes have real kubelets, with the extender and the agents."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.e2e import agentidentity
from tests.e2e.agents import Agent
from tests.e2e.cluster import RealCluster
from tests.e2e.drakubelet import DraKubelet
from tests.e2e.kubelet import Kubelet, kubelet_users
from tests.e2e.nvidiastack import STOCK, PluginSettings, run_plugin_pod
from tests.e2e.playedmachine import PlayedMachine
from tests.e2e.processors import Processors
from tests.e2e.recordfollower import RecordFollower
from tests.programs import free_port
from topology import codec
from topology.core.report import Report
from topology.machines import machine


@dataclass(frozen=True)
class RealNodes:
    """Pods created in ``cluster`` run on ``kubelets``; ``agents`` publish what they hold.

    ``follower`` knows every state that kubelets and records have had.
    """

    cluster: RealCluster
    kubelets: Mapping[str, Kubelet]
    agents: Mapping[str, Agent]
    follower: RecordFollower

    def ready(self, node: str) -> bool:
        """Whether the node's record can be relied on."""
        return ready(self.cluster, node)

    def reports(self, node: str) -> list[Report]:
        """All reports of a node so far, once the follower has heard of the one that stands now."""
        now = codec.decode(self.cluster.record(node)).report
        seen = self.follower.reports[node]
        self.cluster.until(lambda: now in seen, f"the follower knows the report of {node}")
        return [*seen]


@dataclass(frozen=True)
class RealNode:
    """A node to be: a machine of the catalogue by name, and how its device plugin is set up.

    ``processors`` are those of the host where it has none of its own. ``overrides`` are fields of
    its KubeletConfiguration, ``agent`` options of our agent. ``prepare`` is done to the machine
    before any program sees it: MIG instances, faults. With a ``dra_seed`` its GPUs come through a
    DRA driver, which publishes them in the order of that seed, and not through a plugin; those
    of a ``mover`` once it has moved.
    """

    machine: str
    plugin: PluginSettings = STOCK
    processors: Processors | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    prepare: Callable[[PlayedMachine], None] | None = None
    agent: tuple[str, ...] = ()
    dra_seed: int | None = None
    mover: bool = False


@dataclass(frozen=True)
class Joined:
    """What runs on one node."""

    kubelet: Kubelet
    agent: Agent


@contextmanager
def real_nodes(
    folder: Path,
    control_plane: Path,
    binaries: Path,
    nodes: Mapping[str, RealNode],
    later: Sequence[str] = (),
) -> Iterator[RealNodes]:
    """Such a cluster, with these nodes by name; those of ``later`` may be :func:`joined` to it.

    ``control_plane`` and ``binaries`` are the folders of the programs.
    """
    with ExitStack() as stack:
        users = kubelet_users([*nodes, *later])
        cluster = stack.enter_context(RealCluster(folder, control_plane, users))
        agentidentity.install(cluster.control_plane)
        found = {
            name: stack.enter_context(joined(cluster, folder, binaries, name, wanted))
            for name, wanted in nodes.items()
        }
        kubelets = {name: node.kubelet for name, node in found.items()}
        follower = stack.enter_context(RecordFollower(cluster.control_plane, kubelets))
        agents = {name: node.agent for name, node in found.items()}
        yield RealNodes(cluster, kubelets, agents, follower)


@contextmanager
def joined(
    cluster: RealCluster, folder: Path, binaries: Path, name: str, wanted: RealNode
) -> Iterator[Joined]:
    """A node of the cluster, ready for pods; at the end its Node is deleted.

    Kubelet, plugin, feature discovery and agent see one described machine. The agent learns the
    kubelet's configuration from the kubelet, over HTTPS.
    """
    described = machine(wanted.machine)
    port = free_port()
    plane = cluster.control_plane
    kind = (
        Kubelet
        if wanted.dra_seed is None
        else partial(DraKubelet, seed=wanted.dra_seed, mover=wanted.mover)
    )
    with ExitStack() as stack:
        kubelet = stack.enter_context(
            kind(
                plane,
                described.topology(name),
                binaries,
                folder / "nodes",
                {**serving(port), **wanted.overrides},
                machine=described,
                processors=wanted.processors,
                plugin=wanted.plugin,
                prepare=wanted.prepare,
            )
        )
        stack.callback(cluster.api.delete, f"/api/v1/nodes/{name}")
        kubelet.publish_features()
        if wanted.dra_seed is None or wanted.mover:
            run_plugin_pod(cluster.api, name, wanted.plugin)
        silicon = kubelet.silicon
        flags = [
            f"--kubelet-address=127.0.0.1:{port}",
            "--kubelet-insecure-tls",
            f"--sysfs={silicon.sysfs}",
            *wanted.agent,
        ]
        agent = stack.enter_context(
            Agent(
                plane,
                silicon.topology,
                kubelet.socket,
                folder,
                flags,
                silicon.nvml,
                silicon.environment,
            )
        )
        cluster.until(lambda: ready(cluster, name), f"the agent of {name} is ready")
        yield Joined(kubelet, agent)


def ready(cluster: RealCluster, node: str) -> bool:
    """Whether a node's record can be relied on."""
    found = cluster.record(node)
    report = codec.decode(found).report if found else None
    return report is not None and bool(report.conditions) and not report.not_ready


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
