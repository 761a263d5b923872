"""Answers the commands about nodes and pods: it reads the source, and prints the answer.

A cluster is read with the caller's own rights and evaluated with the extender's code. With
--forward the extender returns a snapshot of its state, which includes the assumed pods. With
--watch the answer is printed again whenever it changes.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import typer
import yaml
from rich.console import Console

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.forwarding import Forwarded, forwarded
from scheduler_extender.cli.inputs import PIPE, cluster_file, columns, one_of, tell
from scheduler_extender.cli.interrupts import pause
from scheduler_extender.cli.kubeconfig import Access, asking, usual_namespace
from scheduler_extender.cli.options import Form, Where
from scheduler_extender.files.clusterfile import (
    ClusterFile,
    ClusterFileError,
    assumed,
    feed,
    parse,
)
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.terminal import HarmlessConsole, Shown, progress
from scheduler_extender.untrustedtext import escaped, one_line, sanitized
from topology.core.placement import Verdict
from topology.kubeapi.apiserver import ApiError, ApiFailure, ApiServer

R = TypeVar("R")

EVERY = 1.0  # seconds of the shortest pause between two answers with --watch
RESTS = 4  # with --watch, a pause is at least this many times as long as the last answer took


@dataclass(frozen=True, slots=True)
class Told:
    """An answer in all its forms.

    ``draw`` prints it for people; its second argument is ``wide``. ``data`` returns the same answer
    for programs. ``names`` are the names of its objects. ``notes`` describe what could not be read.
    ``yes`` is false if the command must exit with 1, which means *no*.
    """

    data: Callable[[], Any]
    names: Sequence[str]
    draw: Callable[[Console, bool], None]
    notes: Sequence[str] = field(default_factory=tuple)
    yes: bool = True


def answer(told: Callable[[], Told], form: Form, *, watch: bool) -> NoReturn:
    """Print an answer, once or whenever it changes, and end the command with its exit code."""
    with progress("evaluating"):
        first = told()
        text = text_in(first, form)
    for note in first.notes:
        tell(f"note: {note}")
    _write(text, form, first=True, watch=watch)
    if watch:
        _follow(told, text, form, first.notes)
    raise typer.Exit(0 if first.yes else 1)


def _follow(told: Callable[[], Told], last: str, form: Form, notes: Sequence[str]) -> None:
    """Print the answer whenever it changes, and report notes that are new or no longer apply.

    While the API server does not answer, or is overloaded, it is asked again and again.
    """
    silent, begun = False, time.monotonic()
    while True:
        pause(max(EVERY, RESTS * (time.monotonic() - begun)))
        begun = time.monotonic()
        try:
            now = told()
        except ApiFailure as error:
            if isinstance(error, ApiError) and error.status < 500 and error.status != 429:
                raise
            if not silent:
                tell(f"note: the API server does not answer; retrying: {error}")
            silent = True
            continue
        news = ["the API server answers again"] if silent else []
        news += [note for note in now.notes if note not in notes]
        news += [f"resolved: {note}" for note in notes if note not in now.notes]
        for note in news:
            tell(f"note: {note}")
        silent, notes, text = False, now.notes, text_in(now, form)
        if text != last:
            last = text
            _write(text, form, first=False, watch=True)


def _write(text: str, form: Form, *, first: bool, watch: bool) -> None:
    """Print a text. With ``watch`` on a terminal it replaces the last one."""
    if watch and sys.stdout.isatty() and form in (Form.TABLE, Form.WIDE):
        sys.stdout.write("\x1b[H\x1b[2J\x1b[3J")
    elif not first and form in (Form.TABLE, Form.WIDE):
        sys.stdout.write("\n")
    elif not first and form is Form.YAML:
        sys.stdout.write("---\n")
    sys.stdout.write(text)
    sys.stdout.flush()


def text_in(answer: Told, form: Form) -> str:
    """Return an answer in this form."""
    if form is Form.NAME:
        return "".join(f"{one_line(name)}\n" for name in answer.names)
    if form in (Form.JSON, Form.YAML):
        data = {**msgspec.to_builtins(answer.data()), "notes": list(answer.notes)}
        if form is Form.YAML:
            return as_yaml(data)
        return escaped(json.dumps(data, indent=2, ensure_ascii=False)) + "\n"
    text = io.StringIO()
    answer.draw(here(text), form is Form.WIDE)
    return text.getvalue()


def ordered(
    rows: Iterable[R], columns: Callable[[], Iterable[list[Shown[R]]]], by: str | None
) -> list[R]:
    """Return the rows sorted by the column of this name. Raises :class:`BadInputError`."""
    if by is None:
        return list(rows)
    shown = (each for group in columns() for each in group)
    keys = {str(how.header).lower().replace(" ", "-"): key for how, _, key in shown}
    return sorted(rows, key=one_of("--sort-by", by.lower().replace(" ", "-"), keys))


def as_yaml(data: object) -> str:
    """Return data as YAML without control characters for a terminal, each string on one line.

    If a character would control a terminal, all characters that are not ASCII are escaped.
    """

    class Dumper(yaml.SafeDumper):
        """A dumper that writes a string of several lines in quotes, with escaped line breaks."""

        def represent_str(self, text: str) -> yaml.ScalarNode:
            style = None if one_line(text) == text else '"'
            return self.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, Dumper.represent_str)
    for legible in (True, False):
        text = str(
            yaml.dump(data, Dumper=Dumper, sort_keys=False, width=PIPE, allow_unicode=legible)
        )
        if sanitized(text) == text:
            break
    return text


def here(file: io.StringIO) -> Console:
    """Return a console that writes into ``file`` in the style of standard output.

    It is as wide as standard output. It uses colours only in a terminal, and only if $NO_COLOR does
    not forbid them; $FORCE_COLOR makes it treat any output as a terminal.
    """
    return HarmlessConsole(
        file=file,
        width=columns(),
        force_terminal=sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR")),
        highlight=False,
        markup=False,
        legacy_windows=False,
    )


MINUTE = 60.0
NO_CLAIMS = "not evaluated: a file or a snapshot has no claims; omit --cluster or --forward"
LOST = 5.0  # seconds without an answer of the API server, as in a restart, before a note reports it


@dataclass(frozen=True, slots=True)
class Look:
    """A cluster at one time, as a command sees it.

    ``notes`` describe what could not be read. ``namespace`` is the default namespace. ``api`` is
    the API server; None if the source was a file or the extender.
    """

    cluster: Cache
    today: float  # seconds since 1970
    notes: Sequence[str] = ()
    namespace: str = "default"
    api: ApiServer | None = None
    claiming: Sequence[PodRecord] = ()  # see :attr:`.ClusterFile.claiming`
    content: ClusterFile | None = None  # None if the source was the API server


def answer_from(
    where: Where,
    told: Callable[[Look], Told],
    form: Form,
    *,
    watch: bool,
    namespace: str | None = None,
    require: Verdict = Verdict.EXPECTED,
) -> NoReturn:
    """Print the answer, once or whenever it changes, and end the command.

    Raises :class:`BadInputError`.
    """
    if where.cluster is not None:
        content = cluster_file(where.cluster)
        answer(
            lambda: told(_described(content, require, namespace, assumed(content))),
            form,
            watch=watch,
        )
    elif where.forward:
        meant = namespace or usual_namespace(where.access)
        with forwarded("--forward", where.access, where.system) as port:
            answer(lambda: told(_described(_snapshot(port), require, meant)), form, watch=watch)
    from scheduler_extender.kube.reading import NOT_INSTALLED, live_look, one_look

    with asking(where.access) as (api, usual):
        meant = namespace or usual
        asked = api, meant, Settings(require), time.monotonic
        with live_look(*asked) if watch else nullcontext(one_look(*asked)) as seen:
            if not seen.installed:
                raise BadInputError(NOT_INSTALLED)

            def look() -> Look:
                seen.cluster.expire()
                today, notes, silent = seen.cluster.today(), list(seen.notes), seen.lost()
                if watch:  # round the time, so that ages change the answer only once a minute
                    today -= today % MINUTE
                if silent >= LOST:
                    since = time.strftime("%H:%M UTC", time.gmtime(time.time() - silent))
                    notes.append(
                        f"no change of the cluster received since {since}; this may be out of date"
                    )
                return Look(seen.cluster, today, notes, meant, api)

            answer(lambda: told(look()), form, watch=watch)


def look_once(
    cluster: Path | None,
    access: Access,
    namespace: str | None,
    require: Verdict,
    *,
    bare: bool = False,
) -> Look:
    """Return the current state of the cluster, or the one that a cluster file describes.

    A ``bare`` file may have no records. Raises :class:`BadInputError`.
    """
    if cluster is not None:
        content = cluster_file(cluster, bare=bare)
        return _described(content, require, namespace, assumed(content))
    from scheduler_extender.kube.reading import one_look

    with asking(access) as (api, usual):
        seen = one_look(api, namespace or usual, Settings(require), time.monotonic)
    return Look(seen.cluster, seen.cluster.today(), seen.notes, namespace or usual)


def _described(
    content: ClusterFile, require: Verdict, namespace: str | None, note: str = ""
) -> Look:
    known, notes = described(content, require), (note,) if note else ()
    return Look(known, time.time(), notes, namespace or "default", None, content.claiming, content)


def described(content: ClusterFile, require: Verdict) -> Cache:
    """Return a cache with the content of a cluster file."""
    known = Cache(time.monotonic, Settings(require, None, all_pods_known=False))
    feed(known, content)
    return known


def _snapshot(port: Forwarded) -> ClusterFile:
    try:
        return parse(port.text("/v1/snapshot"), "--forward")
    except ClusterFileError as error:
        raise BadInputError(str(error)) from error
