"""Where the commands about nodes and waiting pods look: a cluster, a file, or the extender.

A cluster is read with the caller's own rights and decided about with the extender's code. The
extender's admin port is asked for a snapshot of what it knows, which has the binds under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler_extender.cli.adminport import ADMIN, AdminPort
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.completion import namespace_completions
from scheduler_extender.cli.forwarding import SYSTEM, Forwarding, asked_over
from scheduler_extender.cli.inputs import cluster_file
from scheduler_extender.cli.kubeconfig import asking, path_of
from scheduler_extender.cli.tokens import token_of
from scheduler_extender.files import clusterfile
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.why.nearest import View
from topology.core.placement import Verdict

if TYPE_CHECKING:
    from scheduler_extender.kube.onelook import Seen
    from topology.kubeapi.apiserver import ApiServer

ClusterOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Cluster file in place of a cluster, to try things out."),
]
AskAdminOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Ask the extender's admin port, forwarded to here, in place of the API server: it "
        f"knows the binds that are being written. For an installed one: {ADMIN}.",
    ),
]
ForwardOption = Annotated[
    bool,
    typer.Option(
        "--forward",
        help="The same, and forward the port with kubectl for as long as the command runs.",
    ),
]
SystemOption = Annotated[
    str,
    typer.Option(
        "--system", metavar="NAME", help="With a port that is forwarded: the extender's namespace."
    ),
]
WhoseOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Whose pods are listed where you may not list those of all namespaces. Without it: "
        "the one of the context.",
        autocompletion=namespace_completions,
    ),
]
SelectorOption = Annotated[
    str | None,
    typer.Option(
        "--selector",
        "-l",
        metavar="SELECTOR",
        help="Only the nodes with these labels, as kubectl takes it, such as pool=a100,zone!=b.",
    ),
]


MINUTE = 60.0
LOST = 5.0
"""Seconds for which the API server may be silent, as while it starts anew, before it is said."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where to look, as the options say it.

    ``extender`` is how to ask the extender: at its port, or at one that has to be forwarded; None
    to ask the API server.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    cluster: Path | None = None
    extender: AdminPort | Forwarding | None = None
    require: Verdict = Verdict.EXPECTED


def extender_of(
    admin: str | None,
    ca: Path | None,
    token: str | None,
    whose: tuple[Path | None, str | None],
    *,
    forward: bool = False,
    system: str = SYSTEM,
) -> AdminPort | Forwarding | None:
    """How the extender is to be asked, by the options; None where it is not.

    ``whose`` are the kubeconfig and the context, whose token is shown where none is given. Raises
    :class:`BadInputError`.
    """
    if admin is None and not forward:
        if ca is not None:
            raise BadInputError("--admin-ca: it is for --admin URL or --forward, which is missing")
        return None
    if admin is None:
        found = path_of(whose[0])
        own = token or token_of(Path(found) if found else None, whose[1], needed=False)
        return Forwarding(system, ca, own)
    if forward:
        raise BadInputError("--cluster, --admin and --forward: allowed is one of them")
    return AdminPort(admin.rstrip("/"), ca, token or token_of(*whose))


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen.

    ``notes`` say what could not be seen. ``namespace`` is the one that is meant where none is
    given. ``api`` is the API server; None where a file or the extender was asked.
    """

    cluster: Cluster
    view: View
    notes: Sequence[str] = ()
    namespace: str = "default"
    api: ApiServer | None = None

    def reachable(self, flag: str) -> ApiServer:
        """The API server, which ``flag`` needs. Raises :class:`BadInputError` where there is
        none."""
        if self.api is None:
            raise BadInputError(
                f"{flag}: only the API server reads it, so it does not go with --cluster, "
                "--admin or --forward"
            )
        return self.api


@contextmanager
def looking(where: Where, *, live: bool = False) -> Iterator[Callable[[], Look]]:
    """What looks, as often as it is called; with ``live`` a cluster is followed meanwhile.

    Raises :class:`BadInputError`, and inside the block what :func:`.asking` turns into it.
    """
    settings = Settings(where.require, None, all_pods_known=False)
    if where.cluster is not None and where.extender is not None:
        raise BadInputError("--cluster, --admin and --forward: allowed is one of them")
    if where.cluster is not None:
        content = cluster_file(where.cluster)
        yield lambda: _described(content, settings, where)
    elif isinstance(where.extender, AdminPort):
        port = where.extender
        yield lambda: _described(_snapshot(port), settings, where)
    elif where.extender is not None:
        with asked_over(where.extender, where.kubeconfig, where.context) as port:
            yield lambda: _described(_snapshot(port), settings, where)
    else:
        yield from _at_api_server(where, live=live)


def _at_api_server(where: Where, *, live: bool) -> Iterator[Callable[[], Look]]:
    from scheduler_extender.kube.livelook import live_look
    from scheduler_extender.kube.onelook import NOT_INSTALLED, one_look

    with asking(where.kubeconfig, where.context) as (api, usual):
        namespace = where.namespace or usual
        settings = Settings(where.require)

        @contextmanager
        def once() -> Iterator[Seen]:
            yield one_look(api, namespace, settings, time.monotonic)

        with live_look(api, namespace, settings, time.monotonic) if live else once() as seen:
            if not seen.installed:
                raise BadInputError(NOT_INSTALLED)

            def look() -> Look:
                seen.cluster.expire()
                today = time.time()
                if live:  # ages change once a minute, so that an answer does not by them alone
                    today -= today % MINUTE
                view = View(today, seen.namespaces)
                return Look(seen.cluster, view, (*seen.notes, *_lost(seen)), namespace, api)

            yield look


def _lost(seen: Seen) -> Iterator[str]:
    """That the API server has not answered for a while, and that the picture is as old."""
    lost = seen.lost()
    if lost >= LOST:
        since = time.strftime("%H:%M UTC", time.gmtime(time.time() - lost))
        yield f"the cluster cannot be followed since {since}, and what is shown is as old"


def _described(content: clusterfile.ClusterFile, settings: Settings, where: Where) -> Look:
    known = Cluster(time.monotonic, settings)
    clusterfile.feed(known, content)
    return Look(known, View(time.time()), (), where.namespace or "default")


def _snapshot(port: AdminPort) -> clusterfile.ClusterFile:
    text = port.text("/v1/snapshot")
    if text is None:
        raise BadInputError(f"--admin: {port.url} is not the extender's admin port")
    try:
        return clusterfile.parse(text, port.url)
    except clusterfile.ClusterFileError as error:
        raise BadInputError(f"--admin: {error}") from error


def selected_nodes(look: Look, selector: str | None) -> set[str] | None:
    """The names of the nodes that a label selector selects; None for all.

    Raises :class:`BadInputError` where the selector cannot be read or asked for.
    """
    if selector is None:
        return None
    from scheduler_extender.kube.selected import node_names
    from topology.kubeapi.apiserver import ApiError

    api = look.reachable("--selector")
    try:
        return node_names(api, selector)
    except ApiError as error:
        if error.status >= 500:
            raise
        raise selector_error(selector, error.status, error.message, "nodes") from error


def selector_error(selector: str, status: int, message: str, what: str) -> BadInputError:
    """Why a selection failed, as what people read."""
    if status == 400:
        return BadInputError(f"--selector: {selector!r} cannot be read: {message}")
    if status in (401, 403):
        return BadInputError(f"--selector: you may not list {what}, so nobody can be selected")
    return BadInputError(f"--selector: the API server answers {status}: {message}")
