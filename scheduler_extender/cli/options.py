"""The options that several commands share, and the mechanism for groups of options.

A command's function may have a frozen dataclass as a parameter. Each field of the dataclass is then
an option of the command; :func:`spread` declares these options to typer. The command passes the
object on to the functions that do its work.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.completion import (
    beginning,
    column_completions,
    namespace_completions,
)
from scheduler_extender.cli.inputs import VERDICTS, one_of, same
from scheduler_extender.cli.interrupts import raised
from scheduler_extender.cli.kubeconfig import Access

SYSTEM = "gpu-topology-system"  # the namespace of an installed extender
# The Secret that the extender's pods mount.
SECRET = "gpu-topology-tls"  # noqa: S105 (a name)
# The Secret that the pods of the chart's second kube-scheduler mount.
SCHEDULER_SECRET = "gpu-topology-scheduler"  # noqa: S105 (a name)


class Form(Enum):
    """The format of an answer. The value is the word for ``--output``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    GRAPHML = "graphml"  # of `node` alone


FORMS = tuple(form.value for form in Form if form is not Form.GRAPHML)


def form_of(word: str, *further: Form) -> Form:
    """Return the form that a word names. Raises :class:`BadInputError`.

    ``further`` are the forms that this command has beside the usual ones.
    """
    word = "table" if word == "text" else word  # as some commands called it
    return Form(one_of("--output", word, same(*FORMS, *(form.value for form in further))))


ClusterOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Instead of a cluster, read a file or machines (hgx-h100-8=2)."
    ),
]
ForwardOption = Annotated[
    bool,
    typer.Option(
        "--forward",
        help="Ask the extender, which also knows unwritten binds, over kubectl port-forward.",
    ),
]
SystemOption = Annotated[
    str, typer.Option("--system", metavar="NAME", help="Namespace of the extender.")
]
PodNamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Namespace of the pod. Default: the context's.",
        autocompletion=namespace_completions,
    ),
]
ListedNamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Namespace of pods, if you may not list all. Default: the context's.",
        autocompletion=namespace_completions,
    ),
]
SelectorOption = Annotated[
    str | None,
    typer.Option(
        "--selector",
        "-l",
        metavar="SELECTOR",
        help="Only nodes with these labels, such as pool=a100,zone!=b.",
    ),
]
RequireOption = Annotated[
    str,
    typer.Option(
        metavar="VERDICT",
        help="The extender's --require: guaranteed or expected.",
        autocompletion=lambda incomplete: beginning(VERDICTS, incomplete),
    ),
]
WeakestOption = Annotated[
    str,
    typer.Option(
        metavar="VERDICT",
        help="The weakest verdict that required constraints accept: guaranteed or expected.",
        autocompletion=lambda incomplete: beginning(VERDICTS, incomplete),
    ),
]


def output_option(*forms: str) -> Any:
    """Return the option that chooses one of these forms."""
    return typer.Option(
        "--output",
        "-o",
        metavar="FORM",
        help=f"Format: {', '.join(forms)}.",
        autocompletion=lambda incomplete: beginning(forms, incomplete),
    )


OutputOption = Annotated[str, output_option(*FORMS)]
SystemNamespaceOption = Annotated[
    str,
    typer.Option("--namespace", metavar="NAME", help="The extender's namespace."),
]
MetricsPortOption = Annotated[
    int, typer.Option(metavar="PORT", help="Port for /metrics, /healthz and /readyz.")
]
WatchOption = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Print the answer whenever it changes."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The cluster or the file that a command reads."""

    cluster: ClusterOption = None
    access: Access = field(default_factory=Access)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where(Source):
    """The source that a command reads: a file, the extender, or the API server.

    Raises :class:`BadInputError` if the options contradict each other.
    """

    forward: ForwardOption = False
    system: SystemOption = SYSTEM

    def __post_init__(self) -> None:
        if self.cluster is not None and self.forward:
            raise BadInputError("--cluster and --forward: only one of them is allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How a list is printed. Raises :class:`BadInputError` if there is no such format."""

    output: OutputOption = "table"
    sort_by: Annotated[
        str | None,
        typer.Option(
            "--sort-by",
            metavar="COLUMN",
            help="Sort by a column; numbers: the largest first.",
            autocompletion=column_completions,
        ),
    ] = None
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Print only the rows.")] = False

    def __post_init__(self) -> None:
        form_of(self.output)

    @property
    def form(self) -> Form:
        """The format of the answer."""
        return form_of(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """The selection of pods. Raises :class:`BadInputError` if the options contradict each other."""

    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Only pods of this namespace. Default: the context's.",
            autocompletion=namespace_completions,
        ),
    ] = None
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The pods of all namespaces.")
    ] = False
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector",
            "-l",
            metavar="SELECTOR",
            help="Only pods with these labels, such as app=train.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.namespace is not None and self.all_namespaces:
            raise BadInputError("--namespace and --all-namespaces: only one of them is allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names in the two certificates."""

    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Further DNS name or IP address of the extender. Repeatable.",
        ),
    ] = None
    namespace: SystemNamespaceOption = SYSTEM
    client_name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="kube-scheduler's name, as in the extender's --client-name."
        ),
    ] = "kube-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """The Secrets that are printed, or kept in the cluster."""

    secret: Annotated[
        bool,
        typer.Option(
            "--secret",
            help=f"Print the extender's certificate as the Secret {SECRET}, for kubectl apply.",
        ),
    ] = False
    scheduler_secret: Annotated[
        bool,
        typer.Option(
            "--scheduler-secret",
            help=f"Print kube-scheduler's certificate as the Secret {SCHEDULER_SECRET}, for a "
            "second kube-scheduler. Risk: users who can read Secrets there can have pods bound.",
        ),
    ] = False
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Keep the CA and both certificates in Secrets of the cluster, not in a folder.",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The extender's address for kube-scheduler, and the certificates for TLS between the two."""

    tls: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with ca.crt, scheduler.crt and scheduler.key.",
        ),
    ] = None
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The extender's IP address, or a name that the node's own DNS resolves.",
        ),
    ] = None
    namespace: SystemNamespaceOption = SYSTEM


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """The root of the files, and whether the changes are made, only shown, or taken back."""

    root: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder instead of /, for a trial."),
    ] = Path("/")
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the changes without making them.")
    ] = False
    remove: Annotated[bool, typer.Option("--remove", help="Undo the changes of this command.")] = (
        False
    )


# Checks whether a parameter stands for a group of options.
_is_group: Callable[[object], bool] = is_dataclass


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with an option for each field of its dataclass parameters.

    Ctrl-C raises KeyboardInterrupt in the returned command.
    """

    @wraps(command)
    def run(**given: Any) -> None:
        with raised():
            _call(command, given)

    run.__signature__ = Signature(list(_options(command)))  # type: ignore[attr-defined]
    return run


def _options(taker: Callable[..., object]) -> Iterator[Parameter]:
    for each in signature(taker, eval_str=True).parameters.values():
        if _is_group(each.annotation):
            yield from _options(each.annotation)
        else:
            yield each.replace(kind=Parameter.KEYWORD_ONLY)


def _call(taker: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a function, or create a group of options, with the options that it takes."""
    chosen = {
        each.name: _call(each.annotation, given) if _is_group(each.annotation) else given[each.name]
        for each in signature(taker, eval_str=True).parameters.values()
    }
    return taker(**chosen)
