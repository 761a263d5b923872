"""The declarations of all commands of the kubectl plugin, which answer people about a cluster."""

import re
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.completion import (
    COMPLETE,
    PROGRAM,
    node_completions,
    pod_completions,
)
from scheduler_extender.cli.inputs import check_node_name, name_of, one_of, text_of, weakest
from scheduler_extender.cli.kubeconfig import Access
from scheduler_extender.cli.options import (
    FORMS,
    SYSTEM,
    ClusterOption,
    Form,
    ListedNamespaceOption,
    Listing,
    OutputOption,
    PodNamespaceOption,
    RequireOption,
    SelectorOption,
    Source,
    SystemOption,
    WatchOption,
    WeakestOption,
    Where,
    Whose,
    form_of,
    output_option,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    """The further options of ``check``: more files, its strictness, and its API server."""

    files: Annotated[
        list[Path] | None,
        typer.Option("--filename", "-f", metavar="FILE", help="Further FILE. Repeatable."),
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")] = False
    access: Access = field(default_factory=Access)


def check(
    pods: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", hidden=True),  # the help text below describes it
    ] = None,
    cluster: ClusterOption = None,
    require: WeakestOption = "expected",
    namespace: ListedNamespaceOption = None,
    *,
    listing: Listing,
    further: Further,
) -> None:
    """Show which nodes would take a pod, and why others would not.

    FILE is a file or folder with Pods or pod templates, or - for standard input. Exits with 1 if no
    node would take a pod or a group, and with 2 if an object cannot be read.

    Several FILEs are allowed. Each pod is evaluated alone, but the pods of a group together. If an
    object cannot be read, the others are still evaluated. -o wide shows every node.
    """
    least = weakest(require)
    from scheduler_extender.cli.check import judged, read_files
    from scheduler_extender.cli.queries import look_once

    read = read_files([*(pods or ()), *(further.files or ())])
    look = look_once(cluster, further.access, namespace, least)
    raise typer.Exit(judged(read, look, listing, strict=further.strict))


def claim(
    pod: Annotated[Path, typer.Argument(metavar="FILE", hidden=True)],
    device_class: Annotated[
        str, typer.Option(metavar="NAME", help="DeviceClass of the GPUs.")
    ] = "gpu.nvidia.com",
    output: Annotated[str, output_option("yaml", "json")] = "yaml",
    *,
    machines: Source,
) -> None:
    """Write a pod's constraints as a claim, for nodes with DRA.

    FILE is a file with a Pod or a pod template, or - for standard input. Exits with 1 if no set of
    GPUs can be named.

    The pod's annotations must require something. The command prints a ResourceClaimTemplate, and
    the objects of the file with a claim of this template. The claim names up to eight sets of GPUs
    of the nodes with DRA, or of all nodes if none uses DRA; any of these sets will do. Standard
    error says what was left out.
    """
    as_json = one_of("--output", output, {"yaml": False, "json": True})
    text = text_of(pod)
    from scheduler_extender.cli.claim import write_claim

    write_claim(text, name_of(pod), device_class, machines, as_json=as_json)


def nodes(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODE", hidden=True, autocompletion=node_completions),
    ] = None,
    *,
    selector: SelectorOption = None,
    watch: WatchOption = False,
    namespace: ListedNamespaceOption = None,
    listing: Listing,
    where: Where,
) -> None:
    """List the nodes with GPUs, and what they can still promise.

    NODE is the name of a node; several are allowed. stranded: free GPUs without an NVLink to
    another free GPU. pairs, quads, whole: further pods that can be promised two or four linked
    GPUs, or the whole node; each for that kind alone. Exits with 1 if no node has GPUs.

    A node with shared GPUs is never whole, and GPUs split by MIG do not count.
    """
    for name in names or ():
        check_node_name("NODE", name)
    from scheduler_extender.cli.nodes import draw, told
    from scheduler_extender.cli.queries import answer_from

    drawing = partial(draw, headers=not listing.no_headers)
    answer_from(
        where,
        lambda look: told(look, selector, drawing, listing, names=names or ()),
        listing.form,
        watch=watch,
        namespace=namespace,
    )


def node(
    name: Annotated[
        str, typer.Argument(metavar="NODE", hidden=True, autocompletion=node_completions)
    ],
    *,
    output: Annotated[str, output_option(*FORMS, Form.GRAPHML.value)] = "table",
    watch: WatchOption = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Let the node take GPU pods again, in spite of refusals. This needs the right to "
            "patch nodes.",
        ),
    ] = False,
    namespace: ListedNamespaceOption = None,
    where: Where,
) -> None:
    """Show a node's GPUs, their pods, and their links.

    NODE is the name of a node.

    With --forward it prints what the extender knows, as YAML. kubectl get gputopo NODE -o yaml
    lists pods with exclusive CPUs (status.exclusive). graphml: GPUs, NUMA nodes, NICs and links as
    a graph, with networkx.
    """
    check_node_name("NODE", name)
    form = form_of(output, Form.GRAPHML)
    if form is Form.GRAPHML and (watch or where.forward):
        raise BadInputError("-o graphml: not with --watch or --forward")
    from scheduler_extender.cli.node import forgive, print_all, print_graph, told
    from scheduler_extender.cli.queries import answer_from, look_once

    if resume:
        forgive(name, where.access)
    elif form is Form.GRAPHML:
        print_graph(look_once(where.cluster, where.access, namespace, weakest("expected")), name)
    elif where.forward:
        print_all(name, where)
    else:
        answer_from(where, lambda look: told(look, name), form, watch=watch, namespace=namespace)


def map_(
    output: OutputOption = "table",
    selector: SelectorOption = None,
    watch: WatchOption = False,
    open_: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Open the extender's map in the browser, over kubectl port-forward.",
        ),
    ] = False,
    namespace: ListedNamespaceOption = None,
    *,
    where: Where,
) -> None:
    """Draw every node's GPUs: free, in use, stranded or sick.

    Exits with 1 if no node has GPUs.

    Each GPU is its index and a letter; a legend explains the letters. Beyond 96 nodes, those
    that look alike share a line; -o wide shows each.
    """
    form = form_of(output)
    if open_ and where.cluster is not None:
        raise BadInputError(
            "--open and --cluster: only one of them is allowed; a cluster file has no extender"
        )
    if open_:
        from scheduler_extender.cli.forwarding import open_map

        open_map(where.access, where.system)
    from scheduler_extender.cli.map import draw
    from scheduler_extender.cli.nodes import told
    from scheduler_extender.cli.queries import answer_from

    answer_from(
        where,
        lambda look: told(look, selector, draw, Listing(), devices=True),
        form,
        watch=watch,
        namespace=namespace,
    )


def waiting(
    *,
    listing: Listing,
    whose: Whose,
    watch: WatchOption = False,
    require: RequireOption = "expected",
    where: Where,
) -> None:
    """List the pods that wait for GPUs, with a reason for each.

    Exits with 1 if no node would take a listed pod.

    The reason counts the nodes by their answers; the command why explains one pod.
    """
    least = weakest(require)
    from scheduler_extender.cli.queries import answer_from
    from scheduler_extender.cli.waiting import told

    answer_from(
        where,
        lambda look: told(look, whose, listing),
        listing.form,
        watch=watch,
        namespace=whose.namespace,
        require=least,
    )


def pods(
    *,
    listing: Listing,
    whose: Whose,
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="NODE",
            help="Only pods on this node.",
            autocompletion=node_completions,
        ),
    ] = None,
    mismatched: Annotated[
        bool,
        typer.Option("--mismatched", help="Only pods that have other GPUs than they require."),
    ] = False,
    watch: WatchOption = False,
    where: Where,
) -> None:
    """List the pods that have GPUs, and what they were promised.

    The column has: the links between the pod's GPUs as in nvidia-smi topo -m, and their NUMA nodes.
    The column verdict: the promise with which the extender bound the pod.
    """
    if node is not None:
        check_node_name("--node", node)
    from scheduler_extender.cli.pods import told
    from scheduler_extender.cli.queries import answer_from

    answer_from(
        where,
        lambda look: told(look, whose, listing, node, mismatched=mismatched),
        listing.form,
        watch=watch,
        namespace=whose.namespace,
    )


UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,6})(s|m|min|h|d)")


def idle(
    *,
    listing: Listing,
    whose: Whose,
    longer_than: Annotated[
        str | None,
        typer.Option(
            "--longer-than",
            metavar="TIME",
            help="Only pods idle for longer, such as 30m or 2h.",
        ),
    ] = None,
    watch: WatchOption = False,
    require: RequireOption = "expected",
    where: Where,
) -> None:
    """List the pods that hold GPUs without using them.

    A pod is listed once all GPUs of one of its containers have been unused for ten minutes.

    The column "would unblock" names waiting pods that no node takes now, and that the node would
    take if the idle pod had ended.
    """
    shortest = 0.0 if longer_than is None else seconds_in("--longer-than", longer_than)
    least = weakest(require)
    from scheduler_extender.cli.idle import told
    from scheduler_extender.cli.queries import answer_from

    answer_from(
        where,
        lambda look: told(look, whose, shortest, listing),
        listing.form,
        watch=watch,
        namespace=whose.namespace,
        require=least,
    )


def seconds_in(flag: str, text: str) -> float:
    """Return a duration such as ``30m`` in seconds. Raises :class:`BadInputError`.

    >>> seconds_in("--since", "90s"), seconds_in("--since", "2h")
    (90.0, 7200.0)
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadInputError(
            f"{flag}: allowed is a whole number with s, m, h or d, such as 30m, not {text[:40]!r}"
        )
    return float(int(found[1]) * UNITS[found[2]])


def unblock(
    pod: Annotated[str, typer.Argument(metavar="POD", hidden=True, autocompletion=pod_completions)],
    namespace: PodNamespaceOption = None,
    output: OutputOption = "table",
    evict: Annotated[
        bool,
        typer.Option(
            "--evict",
            help="Write a reservation and evict the pods, with your own rights.",
        ),
    ] = False,
    keep: Annotated[
        int,
        typer.Option(
            "--keep", metavar="SECONDS", help="With --evict: seconds until the reservation expires."
        ),
    ] = 600,
    *,
    source: Source,
) -> None:
    """Show which pods to evict so that a waiting pod can run.

    POD is NAME, pod/NAME or NAMESPACE/NAME of a waiting pod. Exits with 1 if no eviction is
    worthwhile.

    The command looks for the cheapest set of evictions. Each evicted pod has a guaranteed placement
    elsewhere, or is named as lost. The ClusterRole gpu-topology-unblocker has the rights that the
    command needs.
    """
    form = form_of(output)
    if source.cluster is not None and evict:
        raise BadInputError("--evict: no pod can be evicted from a cluster file (--cluster)")
    from scheduler_extender.cli.unblock import plan

    plan(pod, namespace, source, keep, form, evict=evict)


def why(
    pod: Annotated[str, typer.Argument(metavar="POD", hidden=True, autocompletion=pod_completions)],
    namespace: PodNamespaceOption = None,
    output: OutputOption = "table",
    require: RequireOption = "expected",
    *,
    where: Where,
) -> None:
    """Explain why a pod waits and what would help.

    POD is the name of a pod, or KIND/NAME of its owner, such as deployment/train, job/train,
    jobset/train or pytorchjob/train. Exits with 1 if the pod waits and no node takes it.
    """
    form = form_of(output)
    least = weakest(require)
    from scheduler_extender.cli.why import explain

    explain(pod, namespace, least, where, form)


def audit(
    output: OutputOption = "table",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="How far back, such as 30m, 24h or 7d.")
    ] = "24h",
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write a page to print."),
    ] = None,
    namespace: ListedNamespaceOption = None,
    *,
    source: Source,
) -> None:
    """Show what the cluster loses without the extender.

    The command lists pods that kubelets refused, pods whose GPUs are far apart, free GPUs that no
    waiting pod can use, nodes whose Topology Manager refuses pods, and what the extender would do.
    It needs only the node agents. Without their records it lists refused and waiting pods.

    Events last an hour; a record has the last 32 refused pods of its node. -o name lists the nodes
    whose Topology Manager refuses pods.
    """
    form, seconds = form_of(output), seconds_in("--since", since)
    from scheduler_extender.cli.audit import told
    from scheduler_extender.cli.queries import answer

    answer(lambda: told(source, namespace, seconds, html), form, watch=False)


def doctor(
    scheduler_config: Annotated[
        list[Path] | None,
        typer.Option(
            "--scheduler-config",
            metavar="FILE",
            help="kube-scheduler's configuration; - reads standard input. If its certificates are "
            "readable, doctor also calls the extender. Repeatable.",
        ),
    ] = None,
    output: OutputOption = "table",
    system: SystemOption = SYSTEM,
    forward: Annotated[
        bool,
        typer.Option(
            "--forward",
            help="Also ask the extender, over kubectl port-forward.",
        ),
    ] = False,
    *,
    access: Access,
) -> None:
    """Check an installation, and say how to repair it.

    Exits with 1 if a check fails.

    The command checks kube-scheduler's configuration, certificates, replicas, agents, kubelets,
    NVIDIA's plugin, policies and clocks. It uses your own rights, changes nothing, and says what
    you may not see.
    """
    form = form_of(output)
    from scheduler_extender.cli.doctor import examine

    examine(scheduler_config or (), system, access, form, forward=forward)


HOOK = "kubectl_complete-gpu_topology"
SCRIPT = f"""#!/bin/sh
# kubectl runs this to complete the words of kubectl gpu-topology.
exec {PROGRAM} {COMPLETE} "$@"
"""


def completion() -> None:
    """Install shell completion for kubectl gpu-topology.

    With krew, run it once.

    kubectl runs the program kubectl_complete-gpu_topology, which krew does not install. The command
    writes it next to kubectl-gpu_topology on the PATH. It survives upgrades of the plugin. Remove
    it together with the plugin.
    """
    beside = shutil.which(PROGRAM)
    if beside is None:
        raise BadInputError(f"{PROGRAM} is not on the PATH: install the plugin first")
    hook = Path(beside).parent / HOOK
    try:
        if hook.exists() and hook.read_bytes() != SCRIPT.encode():
            typer.echo(f"{hook} exists already and was not changed")
            return
        hook.write_text(SCRIPT)
        hook.chmod(0o755)
    except OSError as error:
        raise BadInputError(f"{hook}: {error.strerror}") from error
    typer.echo(f"{hook} was written; kubectl now completes the words of kubectl gpu-topology")
