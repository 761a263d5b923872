"""Whom the commands about nodes and waiting pods ask: a cluster, a file, or the extender.

A cluster is read with the caller's own rights and decided about with the extender's code. The
extender is asked for a snapshot of what it knows, which has the binds under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.forwarding import Forwarded, forwarded
from scheduler_extender.cli.inputs import cluster_file
from scheduler_extender.cli.kubeconfig import Access, asking, usual_namespace
from scheduler_extender.cli.options import Form, Where
from scheduler_extender.cli.outputs import Told, answer
from scheduler_extender.files.clusterfile import (
    ClusterFile,
    ClusterFileError,
    feed,
    in_flight,
    parse,
)
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from topology.core.placement import Verdict
from topology.kubeapi.apiserver import ApiServer

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
            lambda: told(_described(content, require, namespace, in_flight(content))),
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
        return _described(content, require, namespace, in_flight(content))
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
