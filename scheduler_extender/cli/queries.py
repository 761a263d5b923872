"""How the commands about nodes and pods answer: whom they ask, in which form, once or again.

A cluster is read with the caller's own rights and decided about with the extender's code. The
extender is asked for a snapshot of what it knows, which has the binds under way. With --watch the
answer is written again whenever it changes.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import typer
import yaml
from rich.console import Console

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.forwarding import Forwarded, forwarded
from scheduler_extender.cli.inputs import PIPE, cluster_file, columns, tell
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
from scheduler_extender.terminal import HarmlessConsole
from scheduler_extender.untrustedtext import escaped, one_line, sanitized
from topology.core.placement import Verdict
from topology.kubeapi.apiserver import ApiError, ApiFailure, ApiServer

EVERY = 1.0  # seconds between two looks at a cluster that is followed
RESTS = 4  # how many times as long as an answer took to work out nothing is worked out after it


@dataclass(frozen=True, slots=True)
class Told:
    """An answer in all its forms.

    ``draw`` writes it for people, ``wide`` or not; ``data`` is the same for programs, ``names`` are
    of the objects that it is about. ``notes`` say what could not be seen. ``yes`` is whether the
    answer is no *no*.
    """

    data: dict[str, Any]
    names: Sequence[str]
    draw: Callable[[Console, bool], None]
    notes: Sequence[str] = field(default_factory=tuple)
    yes: bool = True


def answer(told: Callable[[], Told], form: Form, *, watch: bool) -> NoReturn:
    """Write an answer, once or whenever it changes, and end the command with its exit code."""
    first = told()
    for note in first.notes:
        tell(f"note: {note}")
    text = _text(first, form)
    _write(text, form, first=True, watch=watch)
    if watch:
        _follow(told, text, form, first.notes)
    raise typer.Exit(0 if first.yes else 1)


def _follow(told: Callable[[], Told], last: str, form: Form, notes: Sequence[str]) -> None:
    """Write the answer whenever it changes, and say what can be seen no more, or again."""
    silent = False
    for now in _looks(told):
        if isinstance(now, Exception):
            if not silent:
                tell(f"note: the API server does not answer, and is asked again: {now}")
            silent = True
            continue
        if silent:
            tell("note: the API server answers again")
        silent = False
        for note in now.notes:
            if note not in notes:
                tell(f"note: {note}")
        for note in notes:
            if note not in now.notes:
                tell(f"note: this is over: {note}")
        notes = now.notes
        text = _text(now, form)
        if text != last:
            last = text
            _write(text, form, first=False, watch=True)


def _looks(told: Callable[[], Told]) -> Iterator[Told | ApiFailure]:
    """Answers one after the other, with rests between them; where the API server is gone for a
    while, or has too much to do, why there is none."""
    rest = EVERY
    while True:
        pause(rest)
        begun = time.monotonic()
        now: Told | ApiFailure
        try:
            now = told()
        except ApiFailure as error:
            if isinstance(error, ApiError) and error.status < 500 and error.status != 429:
                raise
            now = error
        yield now
        rest = max(EVERY, RESTS * (time.monotonic() - begun))


def _write(text: str, form: Form, *, first: bool, watch: bool) -> None:
    """Write a text; on a terminal that is followed in place of the last one."""
    if watch and sys.stdout.isatty() and form in (Form.TABLE, Form.WIDE):
        sys.stdout.write("\x1b[H\x1b[2J\x1b[3J")
    elif not first and form in (Form.TABLE, Form.WIDE):
        sys.stdout.write("\n")
    elif not first and form is Form.YAML:
        sys.stdout.write("---\n")
    sys.stdout.write(text)
    sys.stdout.flush()


def _text(told: Told, form: Form) -> str:
    if form is Form.NAME:
        return "".join(f"{one_line(name)}\n" for name in told.names)
    data = {**told.data, "notes": list(told.notes)}
    if form is Form.JSON:
        return escaped(json.dumps(data, indent=2, ensure_ascii=False)) + "\n"
    if form is Form.YAML:
        return as_yaml(data)
    text = io.StringIO()
    console = here(text)
    told.draw(console, form is Form.WIDE)
    return text.getvalue()


def as_yaml(data: object) -> str:
    """Data as YAML, which steers no terminal: where a character of it would, all that are not ASCII
    are escaped. Each string is on one line."""

    class Dumper(yaml.SafeDumper):
        """Writes a string that has several lines in quotes, with its line breaks escaped."""

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
    """A console that writes into ``file`` what suits standard output: as wide, with colours only
    in a terminal and where $NO_COLOR does not forbid them."""
    terminal = sys.stdout.isatty()
    forced = bool(os.environ.get("FORCE_COLOR"))
    return HarmlessConsole(
        file=file,
        width=columns(),
        force_terminal=terminal or forced,
        highlight=False,
        markup=False,
        legacy_windows=False,
    )


MINUTE = 60.0
NO_CLAIMS = "not judged: a file or a snapshot has no claims; leave --cluster or --forward out"
LOST = 5.0
"""Seconds for which the API server may be silent, as while it starts anew, before it is said."""


@dataclass(frozen=True, slots=True)
class Look:
    """A cluster at one moment, as a command sees it.

    ``notes`` say what could not be seen. ``namespace`` is the one that is meant where none is
    given. ``api`` is the API server; None where a file or the extender was asked.
    """

    cluster: Cache
    today: float  # seconds since 1970
    notes: Sequence[str] = ()
    namespace: str = "default"
    api: ApiServer | None = None
    claiming: Sequence[PodRecord] = ()  # see :attr:`.ClusterFile.claiming`


def answer_from(
    where: Where,
    told: Callable[[Look], Told],
    form: Form,
    *,
    watch: bool,
    namespace: str | None = None,
    require: Verdict = Verdict.EXPECTED,
) -> NoReturn:
    """Write the answer, once or whenever it changes; the command ends with it.

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
                if watch:  # ages change once a minute, so that an answer does not by them alone
                    today -= today % MINUTE
                if silent >= LOST:
                    since = time.strftime("%H:%M UTC", time.gmtime(time.time() - silent))
                    notes.append(
                        f"the cluster cannot be followed since {since}, and what is shown is as old"
                    )
                return Look(seen.cluster, today, notes, meant, api)

            answer(lambda: told(look()), form, watch=watch)


def look_once(
    cluster: Path | None, access: Access, namespace: str | None, require: Verdict
) -> Look:
    """What a cluster file describes, or a cluster is at this moment. Raises
    :class:`BadInputError`."""
    if cluster is not None:
        content = cluster_file(cluster)
        return _described(content, require, namespace, assumed(content))
    from scheduler_extender.kube.reading import one_look

    with asking(access) as (api, usual):
        seen = one_look(api, namespace or usual, Settings(require), time.monotonic)
    return Look(seen.cluster, seen.cluster.today(), seen.notes, namespace or usual)


def _described(
    content: ClusterFile, require: Verdict, namespace: str | None, note: str = ""
) -> Look:
    notes = (note,) if note else ()
    known = described(content, require)
    return Look(known, time.time(), notes, namespace or "default", claiming=content.claiming)


def described(content: ClusterFile, require: Verdict) -> Cache:
    """What a cluster file tells."""
    known = Cache(time.monotonic, Settings(require, None, all_pods_known=False))
    feed(known, content)
    return known


def _snapshot(port: Forwarded) -> ClusterFile:
    text = port.text("/v1/snapshot")
    if text is None:
        raise BadInputError("--forward: what answers there has no snapshot of a cluster")
    try:
        return parse(text, "--forward")
    except ClusterFileError as error:
        raise BadInputError(str(error)) from error
