"""The declaration of ``gpu-topology agent``, the node agent."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import check_node_name, log_json, one_of, same
from scheduler_extender.cli.kubeconfig import ContextOption
from scheduler_extender.cli.options import MetricsPortOption

if TYPE_CHECKING:
    from topology.agent.command import Options

AUTO = {"auto": None}  # with this word as an option's value the agent finds out the value


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options of the command, as the user gives them."""

    node_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", envvar="NODE_NAME", help="Name of the node. Default: the host's name."
        ),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Publish once and exit.")] = False
    print_: Annotated[
        bool, typer.Option("--print", help="Print the record instead of publishing it.")
    ] = False
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Publish to the cluster of this kubeconfig."),
    ] = None
    context: ContextOption = None
    pod_resources: Annotated[
        Path, typer.Option(metavar="SOCKET", help="Socket of the kubelet's PodResources API.")
    ] = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    sysfs: Annotated[Path, typer.Option(metavar="FOLDER", help="Mount point of sysfs.")] = Path(
        "/sys"
    )
    boot_id: Annotated[
        Path, typer.Option(metavar="FILE", help="File with the id of the node's boot.")
    ] = Path("/proc/sys/kernel/random/boot_id")
    kubelet_config: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="File with settings that the kubelet does not report. Repeatable; the first file "
            "with a setting counts.",
        ),
    ] = None
    kubelet_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address of the kubelet. Default: from the Node object."
        ),
    ] = None
    kubelet_insecure_tls: Annotated[
        bool,
        typer.Option(
            "--kubelet-insecure-tls",
            help="Do not verify the kubelet's certificate. Risk: the agent sends its token, "
            "unverified, to any server at the node's address.",
        ),
    ] = False
    allocator_policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="How the device plugin picks GPUs: best-effort, distributed, packed or any. "
            "auto: detected.",
        ),
    ] = "auto"
    fail_requests_greater_than_one: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="Whether the device plugin refuses a container several shares: true or false. "
            "auto: learned.",
        ),
    ] = "auto"
    topology_manager_policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="The kubelet's policy: none, best-effort, restricted or single-numa-node. auto: "
            "detected.",
        ),
    ] = "auto"
    topology_manager_scope: Annotated[
        str,
        typer.Option(
            metavar="SCOPE",
            help="The kubelet's scope: container or pod. auto: detected.",
        ),
    ] = "auto"
    heartbeat: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Seconds, ± 20 %, between writes of an unchanged record.",
            min=1,
        ),
    ] = 60.0
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address of the port for metrics.")
    ] = "127.0.0.1"
    metrics_port: MetricsPortOption = 8890

    def checked(self) -> Options:
        """Return these options in the agent's form. Raises :class:`BadInputError`."""
        from topology.agent.command import Options
        from topology.agent.model.nodecontext import KubeletConfig
        from topology.agent.probes.node import KubeletSources
        from topology.agent.settings import Settings
        from topology.core.devices import NodeName

        if not 0 <= self.metrics_port <= 65535:
            raise BadInputError(f"--metrics-port: allowed are 0 to 65535, not {self.metrics_port}")
        if self.node_name:
            check_node_name("--node-name", self.node_name)
        if not self.host:
            raise BadInputError("--host: give an address, such as 127.0.0.1 or 0.0.0.0")
        policies = AUTO | same("best-effort", "distributed", "packed", "any")
        policy = one_of("--allocator-policy", self.allocator_policy, policies)
        answers = AUTO | {"true": True, "false": False}
        fails = one_of(
            "--fail-requests-greater-than-one", self.fail_requests_greater_than_one, answers
        )
        managers = AUTO | same("none", "best-effort", "restricted", "single-numa-node")
        told = KubeletConfig(
            one_of("--topology-manager-policy", self.topology_manager_policy, managers),
            one_of(
                "--topology-manager-scope",
                self.topology_manager_scope,
                AUTO | same("container", "pod"),
            ),
        )
        return Options(
            settings=Settings(
                NodeName(self.node_name or socket.gethostname().lower()),  # the kubelet's default
                self.pod_resources,
                self.sysfs,
                self.boot_id,
                KubeletSources(
                    told,
                    tuple(self.kubelet_config or ()),
                    self.kubelet_address,
                    self.kubelet_insecure_tls,
                ),
                policy,
                fails,
                self.heartbeat,
            ),
            kubeconfig=self.kubeconfig,
            context=self.context,
            host=self.host,
            metrics_port=self.metrics_port,
        )


def agent(options: AgentOptions) -> None:
    """Publish this node's GPUs, their links, and their pods.

    To try it on any machine, run it with --once --print.

    It then shows what it sees, and on standard error what it cannot see.
    """
    from topology.agent import command

    checked = options.checked()
    log_json(quiet=options.once)
    try:
        start = command.once if options.once else command.run
        code = start(checked, show=options.print_)
    except command.OptionError as error:
        raise BadInputError(str(error)) from error
    raise typer.Exit(code)
