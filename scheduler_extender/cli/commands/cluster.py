"""The declarations of all commands of the kubectl plugin, which answer people about a cluster."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
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
    SYSTEM,
    Form,
    ListedNamespaceOption,
    OutputOption,
    PodNamespaceOption,
    RequireOption,
    SelectorOption,
    Source,
    SystemOption,
    TextOption,
    WatchOption,
    WeakestOption,
    Where,
    Whose,
    form_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    """The further options of ``check``: more files, its strictness, and its API server."""

    files: Annotated[
        list[Path] | None,
        typer.Option("--filename", "-f", metavar="FILE", help="As FILE; may stand several times."),
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for a warning, too.")] = (
        False
    )
    access: Access = field(default_factory=Access)


def check(
    pods: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", hidden=True),  # the help text below describes it
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Cluster file that describes the nodes. Without it the API server is asked.",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORM", help="table or json.")
    ] = "table",
    require: WeakestOption = "expected",
    namespace: ListedNamespaceOption = None,
    *,
    further: Further,
) -> None:
    """Say for every node whether it would take a pod, and why not.

    FILE is a file with Pods or objects that have a pod template, such as Jobs, a folder with YAML
    and JSON files, or - for standard input; there may be several. Each pod is judged by itself, but
    members of one group are judged together. Exits with 1 if there is a pod that no node would
    take, or no room for a whole group, and with 2 if an object cannot be read: the others are
    judged all the same.
    """
    as_json = one_of("--output", output, {"table": False, "json": True})
    least = weakest(require)
    from scheduler_extender.cli.check import judged, read_files
    from scheduler_extender.cli.queries import look_once

    read = read_files([*(pods or ()), *(further.files or ())])
    look = look_once(cluster, further.access, namespace, least)
    raise typer.Exit(judged(read, look, as_json=as_json, strict=further.strict))


def claim(
    pod: Annotated[Path, typer.Argument(metavar="FILE", hidden=True)],
    device_class: Annotated[
        str, typer.Option(metavar="NAME", help="The DeviceClass of the GPUs.")
    ] = "gpu.nvidia.com",
    *,
    machines: Source,
) -> None:
    """Write a pod's constraints as a claim, for nodes with DRA.

    FILE is a file with a Pod, or an object that has a pod template, whose annotations require
    something, or - for standard input. It prints a ResourceClaimTemplate and the objects of the
    file, in which the pod has a claim of this template. The claim names up to eight sets of GPUs of
    the cluster's nodes with DRA, or of all nodes where none has DRA yet; any set will do. What is
    left out is said on standard error. Exits with 1 if no set of GPUs can be named.
    """
    text = text_of(pod)
    from scheduler_extender.cli.claim import write_claim

    write_claim(text, name_of(pod), device_class, machines)


def nodes(
    output: OutputOption = "table",
    selector: SelectorOption = None,
    watch: WatchOption = False,
    namespace: ListedNamespaceOption = None,
    *,
    where: Where,
) -> None:
    """List the nodes with GPUs, and what they can still promise.

    Stranded is a free GPU without an NVLink to another free one. Pairs, quads and whole say how
    many more pods the node can promise GPUs: pods that ask for two or four GPUs joined by NVLink,
    or for all GPUs of the node. Each number is for that kind alone. The command needs the rights to
    list nodes, pods and gputopologies, and says what it may not see. Exits with 1 if no node has
    GPUs.
    """
    form = form_of(output)
    from scheduler_extender.cli.nodes import draw, told
    from scheduler_extender.cli.queries import answer_from

    answer_from(
        where, lambda look: told(look, selector, draw), form, watch=watch, namespace=namespace
    )


def node(
    name: Annotated[
        str, typer.Argument(metavar="NODE", hidden=True, autocompletion=node_completions)
    ],
    *,
    output: OutputOption = "table",
    watch: WatchOption = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Forgive the node's refusals so far: it takes GPU pods again."
        ),
    ] = False,
    namespace: ListedNamespaceOption = None,
    where: Where,
) -> None:
    """Show a node's GPUs, who holds them, and their links.

    NODE is the name of a node. The command needs the rights to list nodes, pods and gputopologies,
    and says what it may not see. A node whose kubelet refused pods in a row takes none for a while;
    to resume it is to let it take pods again: --resume writes the annotation gpu-topology.io/resume
    to the Node, which needs the right to patch nodes. Which pods have which exclusive CPUs stands
    in the record (kubectl get gputopo NODE -o yaml, status.exclusive).
    """
    check_node_name("NODE", name)
    form = form_of(output)
    from scheduler_extender.cli.node import forgive, print_all, told
    from scheduler_extender.cli.queries import answer_from

    if resume:
        forgive(name, where.access)
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
            help="Open the extender's map in the browser, over kubectl port-forward, until Ctrl-C.",
        ),
    ] = False,
    namespace: ListedNamespaceOption = None,
    *,
    where: Where,
) -> None:
    """Draw every node's GPUs: free, in use, stranded or sick.

    Each GPU is its index and a letter, with colours on a terminal; a legend stands below. Nodes
    that look alike share a line where there are many; -o wide gives each its own. The command needs
    the rights to list nodes, pods and gputopologies, and says what it may not see. Exits with 1 if
    no node has GPUs.
    """
    form = form_of(output)
    if open_ and where.cluster is not None:
        raise BadInputError("--open and --cluster: allowed is one of them, a file has no extender")
    if open_:
        from scheduler_extender.cli.forwarding import open_map

        open_map(where.access, where.system)
    from scheduler_extender.cli.map import draw
    from scheduler_extender.cli.nodes import told
    from scheduler_extender.cli.queries import answer_from

    answer_from(
        where,
        lambda look: told(look, selector, draw, devices=True),
        form,
        watch=watch,
        namespace=namespace,
    )


def waiting(
    output: OutputOption = "table",
    *,
    whose: Whose,
    watch: WatchOption = False,
    require: RequireOption = "expected",
    where: Where,
) -> None:
    """List the pods that wait for GPUs, and why, in one line each.

    The reason counts the nodes by what they answer; why POD says more about one pod. The command
    needs the rights to list pods, nodes and gputopologies, and says what it may not see. Exits with
    1 if a listed pod waits that no node would take.
    """
    form, least = form_of(output), weakest(require)
    from scheduler_extender.cli.queries import answer_from
    from scheduler_extender.cli.waiting import told

    answer_from(
        where,
        lambda look: told(look, whose),
        form,
        watch=watch,
        namespace=whose.namespace,
        require=least,
    )


UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,6})(s|m|min|h|d)")


def idle(
    output: OutputOption = "table",
    *,
    whose: Whose,
    longer_than: Annotated[
        str | None,
        typer.Option(
            "--longer-than",
            metavar="TIME",
            help="Only who has been idle for longer, such as 30m, 2h or 1d.",
        ),
    ] = None,
    watch: WatchOption = False,
    require: RequireOption = "expected",
    where: Where,
) -> None:
    """List the pods that hold GPUs without using them.

    A pod is listed once no GPU of one of its containers has been used for ten minutes; the agents
    of the nodes watch that. "Its end lets in" are waiting pods that no node takes now and that the
    node would take if the idle pod had ended. The command needs the rights to list pods, nodes and
    gputopologies, and says what it may not see.
    """
    form = form_of(output)
    shortest = 0.0 if longer_than is None else seconds_in(longer_than)
    least = weakest(require)
    from scheduler_extender.cli.idle import told
    from scheduler_extender.cli.queries import answer_from

    answer_from(
        where,
        lambda look: told(look, whose, shortest),
        form,
        watch=watch,
        namespace=whose.namespace,
        require=least,
    )


def seconds_in(text: str) -> float:
    """Return a duration such as ``30m`` in seconds. Raises :class:`BadInputError`.

    >>> seconds_in("90s"), seconds_in("2h")
    (90.0, 7200.0)
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadInputError(
            f"--longer-than: allowed is a whole number with s, m, h or d, such as 30m, not "
            f"{text[:40]!r}"
        )
    return float(int(found[1]) * UNITS[found[2]])


def unblock(
    pod: Annotated[str, typer.Argument(metavar="POD", hidden=True, autocompletion=pod_completions)],
    namespace: PodNamespaceOption = None,
    output: TextOption = "text",
    evict: Annotated[
        bool, typer.Option("--evict", help="Carry the plan out, with your own rights.")
    ] = False,
    keep: Annotated[
        int,
        typer.Option(
            "--keep", metavar="SECONDS", help="With --evict: how long the reservation lasts."
        ),
    ] = 600,
    *,
    source: Source,
) -> None:
    """Say whom to evict so that a waiting pod can run.

    POD is the name of a waiting pod, or NAMESPACE/NAME. The command looks for the cheapest set of
    evictions; each of the evicted pods has a guaranteed place elsewhere, or is named as lost. It
    needs the rights to list nodes, gputopologies, and the pods and PodDisruptionBudgets of all
    namespaces. With --evict it writes a reservation and evicts the pods through the Eviction API:
    the ClusterRole gpu-topology-unblocker has all these rights. Exits with 1 where no pod is worth
    evicting.
    """
    as_json = one_of("--output", output, {"text": False, "json": True})
    if source.cluster is not None and evict:
        raise BadInputError("--evict: no pod can be evicted from a cluster file (--cluster)")
    from scheduler_extender.cli.unblock import plan

    plan(pod, namespace, source, keep, evict=evict, as_json=as_json)


def why(
    pod: Annotated[str, typer.Argument(metavar="POD", hidden=True, autocompletion=pod_completions)],
    namespace: PodNamespaceOption = None,
    output: TextOption = "text",
    require: RequireOption = "expected",
    *,
    where: Where,
) -> None:
    """Say why a pod waits and what would help.

    POD is the name of a pod, or KIND/NAME of what makes pods, such as deployment/train, job/train,
    jobset/train or pytorchjob/train. The command needs a kubeconfig and the rights to list nodes,
    pods and gputopologies, and says what it may not see. Exits with 1 if the pod waits and no node
    takes it.
    """
    as_json = one_of("--output", output, {"text": False, "json": True})
    least = weakest(require)
    from scheduler_extender.cli.why import explain

    explain(pod, namespace, least, where, as_json=as_json)


def doctor(
    scheduler_config: Annotated[
        list[Path] | None,
        typer.Option(
            "--scheduler-config",
            metavar="FILE",
            help="kube-scheduler's configuration, where it is a file of a control-plane node; - is "
            "standard input. If the certificates that it names are here, too, the extender is "
            "asked as kube-scheduler asks it. May be given several times.",
        ),
    ] = None,
    output: TextOption = "text",
    system: SystemOption = SYSTEM,
    forward: Annotated[
        bool,
        typer.Option(
            "--forward",
            help="Ask the extender, too, over kubectl port-forward: it knows what kube-scheduler "
            "has asked.",
        ),
    ] = False,
    *,
    access: Access,
) -> None:
    """Check what is installed, and say what to do.

    It looks at kube-scheduler's configuration, certificates, replicas, agents, kubelets, NVIDIA's
    plugin, policies and clocks, with your own rights, and changes nothing. What you may not see is
    said. Exits with 1 if something fails.
    """
    form = one_of("--output", output, {"text": Form.TABLE, "json": Form.JSON})
    from scheduler_extender.cli.doctor import examine

    examine(scheduler_config or (), system, access, form, forward=forward)


HOOK = "kubectl_complete-gpu_topology"
SCRIPT = f"""#!/bin/sh
# kubectl runs this to complete the words of kubectl gpu-topology.
exec {PROGRAM} {COMPLETE} "$@"
"""


def completion() -> None:
    """Let kubectl complete the words of kubectl gpu-topology.

    kubectl asks the program kubectl_complete-gpu_topology, which krew installs with no plugin. This
    writes it into the folder of the PATH in which kubectl-gpu_topology is. It goes on working when
    the plugin is upgraded; remove it together with the plugin.
    """
    beside = shutil.which(PROGRAM)
    if beside is None:
        raise BadInputError(f"{PROGRAM} is not on the PATH: install the plugin first")
    hook = Path(beside).parent / HOOK
    try:
        if hook.exists() and hook.read_bytes() != SCRIPT.encode():
            typer.echo(f"{hook} is there already, and is left as it is")
            return
        hook.write_text(SCRIPT)
        hook.chmod(0o755)
    except OSError as error:
        raise BadInputError(f"{hook}: {error.strerror}") from error
    typer.echo(f"{hook} is written: kubectl completes the words of kubectl gpu-topology now")
