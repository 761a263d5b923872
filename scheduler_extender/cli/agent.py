"""``gpu-topology agent``: the node agent's command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import check_node_name, log_json, one_of


def agent(
    node_name: Annotated[
        str | None, typer.Option(envvar="NODE_NAME", help="The node; by default the host's name.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Publish once and exit.")] = False,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the object instead of publishing it.")
    ] = False,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Publish to the cluster of this kubeconfig.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    pod_resources: Annotated[Path, typer.Option(help="The kubelet's PodResources socket.")] = Path(
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    ),
    sysfs: Annotated[Path, typer.Option(help="Where sysfs is mounted.")] = Path("/sys"),
    boot_id: Annotated[Path, typer.Option(help="The file with the node's boot id.")] = Path(
        "/proc/sys/kernel/random/boot_id"
    ),
    kubelet_config: Annotated[
        list[Path] | None, typer.Option(help="The kubelet's configuration file; repeatable.")
    ] = None,
    kubelet_address: Annotated[
        str | None, typer.Option(help="host:port of the kubelet; by default the Node's.")
    ] = None,
    kubelet_insecure_tls: Annotated[
        bool, typer.Option("--kubelet-insecure-tls", help="Do not check its certificate.")
    ] = False,
    allocator_policy: Annotated[
        str, typer.Option(help="The plugin's: auto, best-effort, distributed, packed or any.")
    ] = "auto",
    topology_manager_policy: Annotated[
        str,
        typer.Option(help="auto, none, best-effort, restricted or single-numa-node."),
    ] = "auto",
    topology_manager_scope: Annotated[str, typer.Option(help="auto, container or pod.")] = "auto",
    heartbeat: Annotated[
        float, typer.Option(help="Seconds between two writes without news, ± 20 %.", min=1)
    ] = 60.0,
    host: Annotated[str, typer.Option(help="Address of the metrics.")] = "127.0.0.1",
    metrics_port: Annotated[int, typer.Option(help="Port of /metrics and /healthz.")] = 8890,
) -> None:
    """Publish this node's GPUs, their links, and who holds them.

    With --once --print it shows on any machine what it can see, and on stderr what it cannot.
    """
    from topology.agent import command

    if not 0 <= metrics_port <= 65535:
        raise BadInputError(f"--metrics-port: allowed are 0 to 65535, not {metrics_port}")
    if node_name:
        check_node_name("--node-name", node_name)
    if not host:
        raise BadInputError("--host: give an address, such as 127.0.0.1 or 0.0.0.0")
    known = {w: w for w in ("best-effort", "distributed", "packed", "any")}
    policy = one_of("--allocator-policy", allocator_policy, known, None, "auto")
    manager = {w: w for w in ("none", "best-effort", "restricted", "single-numa-node")}
    told = one_of("--topology-manager-policy", topology_manager_policy, manager, None, "auto")
    scopes = {w: w for w in ("container", "pod")}
    scope = one_of("--topology-manager-scope", topology_manager_scope, scopes, None, "auto")
    log_json(quiet=once)
    options = command.Options(
        node_name=node_name,
        kubeconfig=kubeconfig,
        context=context,
        pod_resources=pod_resources,
        sysfs=sysfs,
        boot_id=boot_id,
        kubelet_config=tuple(kubelet_config or ()),
        kubelet_address=kubelet_address,
        kubelet_insecure_tls=kubelet_insecure_tls,
        allocator_policy=policy,
        topology_manager_policy=told,
        topology_manager_scope=scope,
        heartbeat=heartbeat,
        host=host,
        metrics_port=metrics_port,
    )
    try:
        start = command.once if once else command.run
        code = start(options, show=print_)
    except command.OptionError as error:
        raise BadInputError(str(error)) from error
    raise typer.Exit(code)
