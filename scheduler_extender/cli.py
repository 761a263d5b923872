"""``gpu-topology``: the only place that wires things together.

Exit codes: 0 done, 1 the answer is no, 2 bad input with one clear line on stderr.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import ssl
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler_extender import check as checking
from scheduler_extender import podfile
from scheduler_extender.cluster import Cluster, Settings
from scheduler_extender.commandline import BadInputError, run
from scheduler_extender.filecluster import ClusterFileError, FileBinder, feed, load
from scheduler_extender.terminal import show
from topology import codec
from topology.core.devices import Bytes, NodeName
from topology.core.graph import AllocatorFacts
from topology.core.placement import Verdict
from topology.machines import MACHINES, Machine, UnknownMachine, machine

app = typer.Typer(
    name="gpu-topology",
    help="GPU placement on Kubernetes that keeps its word.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
MAX_TEXT = 16 * 1024 * 1024
"""Bytes of a pod, or of what people paste of a machine."""
console = Console(width=None if sys.stdout.isatty() else 160)


@app.command()
def extender(
    cluster: Annotated[
        Path | None, typer.Option(help="Serve a described cluster: a YAML file, see docs.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Serve the cluster of this kubeconfig.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for kube-scheduler.")] = 8888,
    admin_port: Annotated[int, typer.Option(help="Port for people and Prometheus.")] = 8889,
    require: Annotated[
        str, typer.Option(help="Weakest verdict a required pod accepts: guaranteed or expected.")
    ] = "expected",
    stale_after: Annotated[
        float, typer.Option(help="Seconds without a changed report until a node is stale.", min=1)
    ] = 180.0,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate for the port.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of the certificate.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="CA that must have signed the client's certificate.")
    ] = None,
    client_name: Annotated[
        list[str] | None,
        typer.Option(help="Common or DNS name a client may bear; repeatable. Needs --client-ca."),
    ] = None,
) -> None:
    """Run the scheduler extender.

    With --cluster it serves a file, with --kubeconfig or inside a cluster the API server's state.
    """
    from scheduler_extender.serving import Tls

    if cluster is not None and kubeconfig is not None:
        raise BadInputError("--cluster and --kubeconfig exclude each other")
    _two_ports(port, admin_port)
    weakest = _one_of("--require", require, {"guaranteed": Verdict.GUARANTEED}, Verdict.EXPECTED)
    tls = None
    if tls_cert or tls_key or client_ca or client_name:
        if tls_cert is None or tls_key is None:
            raise BadInputError("--tls-cert and --tls-key are needed together")
        if client_name and client_ca is None:
            raise BadInputError("--client-name needs --client-ca")
        for path in filter(None, (tls_cert, tls_key, client_ca)):
            if not path.is_file():
                raise BadInputError(f"{path}: no such file")
        try:
            ssl.create_default_context(cafile=client_ca).load_cert_chain(tls_cert, tls_key)
        except OSError as error:  # SSLError is one, and so is a key that may not be read
            raise BadInputError(f"TLS files cannot be used: {error}") from error
        tls = Tls(tls_cert, tls_key, client_ca, frozenset(client_name or ()))
    _log_json()
    if cluster is not None:
        _serve_file(
            cluster, Settings(weakest, None, all_pods_known=False), host, port, admin_port, tls
        )
    else:
        settings = Settings(weakest, stale_after)
        _serve_kube(kubeconfig, context, settings, host, port, admin_port, tls)


def _serve_file(
    path: Path, settings: Settings, host: str, port: int, admin_port: int, tls: Any
) -> None:
    from scheduler_extender.app import Metrics, Service

    content = _cluster_file(path)
    state = Cluster(time.monotonic, settings)
    feed(state, content)
    binder = FileBinder(state)
    metrics = Metrics()
    metrics.watch(state)
    service = Service(state, binder, lambda: None, metrics, file_mode=True)
    _serve(service, host, port, admin_port, tls, f"{len(content.records)} nodes from {path}")


def _serve_kube(
    kubeconfig: Path | None,
    context: str | None,
    settings: Settings,
    host: str,
    port: int,
    admin_port: int,
    tls: Any,
) -> None:
    from scheduler_extender.app import Metrics, Service
    from scheduler_extender.kube import KubeSource
    from topology.kubeapi.apiserver import ApiFailure, ApiServer

    try:
        if kubeconfig is not None:
            api = ApiServer.from_kubeconfig(kubeconfig, context)
        else:
            api = ApiServer.in_cluster()
    except ApiFailure as error:
        hint = "" if kubeconfig else "; outside a cluster give --cluster FILE or --kubeconfig PATH"
        raise BadInputError(f"{error}{hint}") from error
    state = Cluster(time.monotonic, settings)
    metrics = Metrics()
    metrics.watch(state)
    source = KubeSource(api, state)
    source.start()
    try:
        source.tell(metrics.follow)
        service = Service(state, source.binder, source.unready, metrics)
        _serve(service, host, port, admin_port, tls, "the API server's cluster")
    finally:
        source.stop()


def _serve(service: Any, host: str, port: int, admin_port: int, tls: Any, what: str) -> None:
    from scheduler_extender.app import create_admin_app, create_app
    from scheduler_extender.serving import PortError, Serving, listen

    try:
        sockets = (listen(host, port), listen(host, admin_port))
    except PortError as error:
        raise BadInputError(str(error)) from error
    serving = Serving(create_app(service), create_admin_app(service), sockets, tls)
    scheme = "https" if tls else "http"
    scheduler_port, people_port = (s.getsockname()[1] for s in sockets)

    def started() -> None:
        structlog.get_logger().info(
            "serving",
            what=what,
            scheduler=f"{scheme}://{host}:{scheduler_port}/scheduler",
            admin=f"http://{host}:{people_port}/v1/nodes",
        )

    serving.run(started)


@app.command()
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
    from topology.agent import command as agentcommand

    if not 0 <= metrics_port <= 65535:
        raise BadInputError(f"--metrics-port: allowed are 0 to 65535, not {metrics_port}")
    if node_name:
        _check_node_name("--node-name", node_name)
    if not host:
        raise BadInputError("--host: give an address, such as 127.0.0.1 or 0.0.0.0")
    known = {w: w for w in ("best-effort", "distributed", "packed", "any")}
    policy = _one_of("--allocator-policy", allocator_policy, known, None, "auto")
    manager = {w: w for w in ("none", "best-effort", "restricted", "single-numa-node")}
    told = _one_of("--topology-manager-policy", topology_manager_policy, manager, None, "auto")
    scopes = {w: w for w in ("container", "pod")}
    scope = _one_of("--topology-manager-scope", topology_manager_scope, scopes, None, "auto")
    _log_json(quiet=once)
    options = agentcommand.Options(
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
        if once:
            code = agentcommand.once(options, show=print_)
        else:
            code = agentcommand.run(options, show=print_)
    except agentcommand.OptionError as error:
        raise BadInputError(str(error)) from error
    raise typer.Exit(code)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="nvidia-smi topo -m text or NCCL XML; - is stdin.")],
    node: Annotated[str, typer.Option(help="Name of the node it was taken on.")],
    product: Annotated[
        str | None, typer.Option(help="Product name, such as 'NVIDIA A100-SXM4-40GB'.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of each GPU, such as 40960Mi (nvidia-smi's MiB).")
    ] = None,
    allocator: Annotated[
        str | None,
        typer.Option(
            help="How the node's device plugin picks GPUs: best-effort (the default: NVIDIA's own, "
            "unmodified, over whole GPUs), distributed, packed or any."
        ),
    ] = None,
) -> None:
    """Turn what people paste of a machine into a GPUTopology object, as YAML on stdout."""
    from scheduler_extender.annotations import quantity
    from topology.sources import SourceError, read

    _check_node_name("--node", node)
    known = {w: w for w in ("distributed", "packed", "any")}
    policy = _one_of("--allocator", allocator or "best-effort", known, "best-effort", "best-effort")
    amount = None
    if memory is not None:
        try:
            amount = Bytes(int(quantity(memory)))
        except ValueError as error:
            raise BadInputError(f"--memory: {error}") from error
        if not 0 < amount < 2**63:
            raise BadInputError(f"--memory: allowed are 1 to 2^63 - 1 bytes, not {memory}")
    try:
        found = read(_pasted(file), NodeName(node), product=product, memory=amount)
    except SourceError as error:
        raise BadInputError(f"{file}: {error}") from error
    for finding in found.findings:
        typer.echo(f"{file}: {finding}", err=True)
    if allocator is None:
        typer.echo(
            f"{file}: allocator taken as best-effort, NVIDIA's unmodified plugin over whole GPUs: "
            "--allocator distributed if it shares GPUs, any if another plugin hands them out",
            err=True,
        )
    topology = replace(found.topology, allocator=AllocatorFacts(policy))
    try:
        document = codec.encode(topology)
    except ValidationError as error:
        raise BadInputError(f"{file}: {codec.first_error(error)}") from error
    typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)


@app.command()
def check(
    pod: Annotated[Path, typer.Argument(help="A Pod, or what has a pod template; - is stdin.")],
    cluster: Annotated[Path, typer.Option(help="Cluster file with the nodes.")],
    output: Annotated[str, typer.Option(help="table or json.")] = "table",
    require: Annotated[
        str, typer.Option(help="Weakest verdict a required pod accepts: guaranteed or expected.")
    ] = "expected",
) -> None:
    """Say for every node whether it would take a pod, and why not. Exit 1 if none would."""
    weakest = _one_of("--require", require, {"guaranteed": Verdict.GUARANTEED}, Verdict.EXPECTED)
    as_json = _one_of("--output", output, {"json": True}, False, "table")
    state = Cluster(lambda: 0.0, Settings(weakest, None, all_pods_known=False))
    feed(state, _cluster_file(cluster))
    asked = _pod_file(pod)
    answer = checking.check(state, asked.name, asked.request)
    told = answer.pop("summary")
    passing = sum(row["passes"] for row in answer["nodes"])
    if as_json:
        for row in answer["nodes"]:
            del row["passes"]
        typer.echo(json.dumps(answer, indent=2))
    else:
        console.print(Text(asked.name, "bold"), Text(f"asks {asked.request.text}"))
        show(console, checking.table(answer), keys=3)
        console.print(told, highlight=False)
    raise typer.Exit(0 if passing else 1)


@app.command()
def machines(
    name: Annotated[str | None, typer.Argument(help="One machine, as a GPUTopology.")] = None,
    output: Annotated[str, typer.Option(help="For one machine: yaml or matrix.")] = "yaml",
) -> None:
    """List the machines of the catalogue, or print one."""
    if name is None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("machine", "GPUs", "what it is"):
            table.add_column(column, overflow="fold")
        for known in MACHINES.values():
            table.add_row(known.name, known.topology("node").summary(), known.description)
        console.print(table)
        return
    matrix = _one_of("--output", output, {"matrix": True}, False, "yaml")
    try:
        found = machine(name)
    except UnknownMachine as error:
        raise BadInputError(str(error)) from error
    if matrix:
        show(console, _matrix(found))
    else:
        document = codec.encode(found.topology(found.name))
        typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)


def _matrix(found: Machine) -> Table:
    topology = found.topology("node")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for gpu in topology.gpus:
        table.add_column(f"GPU{gpu.index}", no_wrap=True)
    table.add_column("NUMA")
    for p, gpu in enumerate(topology.gpus):
        cells = [
            "X"
            if link is None
            else f"NV{link.nvlinks} {link.pcie.label}"
            if link.nvlinks
            else link.pcie.label
            for link in topology.shape.links[p]
        ]
        table.add_row(f"GPU{gpu.index}", *cells, str(gpu.numa_node))
    return table


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("out"),
    pods: Annotated[int, typer.Option(help="How many pods to send.", min=1, max=5000)] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 1,
    cluster: Annotated[
        Path | None, typer.Option(help="Another cluster file than the bundled one.")
    ] = None,
    serve: Annotated[bool, typer.Option(help="Leave the extender running instead.")] = False,
    port: Annotated[int, typer.Option(help="With --serve: port for kube-scheduler.")] = 8888,
    admin_port: Annotated[int, typer.Option(help="With --serve: port for people.")] = 8889,
) -> None:
    """Place pods on a bundled cluster and show what happened.

    It has 64 nodes, the service is the real one, and the kubelets are emulated.
    """
    from scheduler_extender.demo import PICTURE, run_demo, serve_demo
    from scheduler_extender.serving import PortError

    if serve:
        _two_ports(port, admin_port)
    else:
        _folder("--out", out)
        if (out / PICTURE).is_dir():
            raise BadInputError(f"--out: {out / PICTURE}: Is a directory")
    try:
        if serve:
            code = serve_demo(console, cluster, port, admin_port)
        else:
            code = run_demo(console, out, pods, seed, cluster)
    except (ClusterFileError, PortError) as error:
        raise BadInputError(str(error)) from error
    raise typer.Exit(code)


def _two_ports(port: int, admin_port: int) -> None:
    for flag, number in (("--port", port), ("--admin-port", admin_port)):
        if not 0 <= number <= 65535:
            raise BadInputError(f"{flag}: allowed are 0 to 65535, not {number}")
    if port == admin_port != 0:
        raise BadInputError(f"--port and --admin-port are both {port}: two ports are needed")


def _folder(flag: str, path: Path) -> None:
    """Make a folder before the work that fills it. Raises :class:`BadInputError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInputError(f"{flag}: {path}: a folder is needed, a file is in the way") from error
    except OSError as error:
        raise BadInputError(f"{flag}: {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise BadInputError(f"{flag}: {path}: Permission denied")


def _check_node_name(flag: str, name: str) -> None:
    if len(name) > 253 or not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
        said = "a node's name is of a-z, 0-9, - and ., at most 253 characters"
        raise BadInputError(f"{flag}: {said}, not {name[:60]!r}")


def _one_of(
    flag: str, value: str, words: dict[str, Any], default: Any, word: str = "expected"
) -> Any:
    known = {word: default, **words}
    if value not in known:
        raise BadInputError(f"{flag}: allowed are {', '.join(known)}, not {value!r}")
    return known[value]


def _cluster_file(path: Path) -> Any:
    try:
        return load(path)
    except ClusterFileError as error:
        raise BadInputError(str(error)) from error


def _text(path: Path, most: int = MAX_TEXT, *, utf16: bool = False) -> str:
    """A file, or what is piped in; ``utf16`` takes that too where it says so."""
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with path.open("rb") as file:
                data = file.read(most + 1)
        if len(data) > most:
            raise BadInputError(f"{path}: larger than {most:,} bytes")
        marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return data.decode("utf-16" if utf16 and marked else "utf-8")
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: not UTF-8 text: {error.reason}") from error


def _pasted(path: Path) -> str:
    """What a shell or an editor saved, at most what :func:`topology.sources.read` takes."""
    from topology.sources import MAX_TEXT as MOST_PASTED

    return _text(path, 4 * MOST_PASTED, utf16=True)  # PowerShell's ">" writes UTF-16


def _pod_file(path: Path) -> podfile.Asked:
    """The file's pod; bad input also where an annotation cannot be read."""
    try:
        found = podfile.read(_text(path))
    except podfile.PodFileError as error:
        raise BadInputError(f"{path}: {error}") from error
    for note in found.notes:
        typer.echo(f"warning: {path}: {note}", err=True)
    return found


def _log_json(*, quiet: bool = False) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("error" if quiet else "notset"),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main() -> NoReturn:
    """The console script."""
    run(app, "gpu-topology")
