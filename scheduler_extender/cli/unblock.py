"""Whom to evict so that a waiting pod gets a guaranteed place.

It needs no extender: it reads the cluster with the caller's own rights and plans with the
extender's code. ``--evict`` carries the plan out (:mod:`.evictions`).
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.text import Text

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.evictions import Evicting
from scheduler_extender.cli.inputs import cluster_file, standard_output
from scheduler_extender.cli.kubeconfig import asking
from scheduler_extender.cli.options import Source
from scheduler_extender.cli.source import described
from scheduler_extender.cli.suggestions import pod_meant
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.reservation import MAX_SECONDS
from scheduler_extender.told.unblocking import Unblocking, unblocking_of
from topology.core.placement import Verdict

if TYPE_CHECKING:
    from topology.kubeapi.apiserver import ApiServer


def plan(
    pod: str, namespace: str | None, source: Source, keep: int, *, evict: bool, as_json: bool
) -> None:
    """Print whom to evict; with ``evict`` the place is reserved for ``keep`` seconds, and they are
    evicted. Raises :class:`BadInputError`."""
    if not 30 <= keep <= MAX_SECONDS:
        raise BadInputError(f"--keep: allowed are 30 to {MAX_SECONDS:.0f} seconds, not {keep}")
    where, _, name = pod.rpartition("/")
    if source.cluster is not None:
        known = described(cluster_file(source.cluster), Verdict.EXPECTED)
        found = _answer(known, where or namespace or "default", name, f"{source.cluster}: ")
        _show(found, as_json=as_json)
        return
    with asking(source.access) as (api, usual):
        where = where or namespace or usual
        found = _answer(_read(api), where, name, "")
        kept, cheapest = found.reservation, found.plan
        if not evict or (kept is None and (cheapest is None or not cheapest.steps)):
            _show(found, as_json=as_json)
            return
        _tell(found, as_json=as_json)
        evicting = Evicting(api, found, lambda: unblocking_of(_read(api), where, name))
        if kept is None and cheapest is not None:
            evicting.reserve(cheapest, keep)
        evicting.carry_out()


def _read(api: ApiServer) -> Cache:
    from scheduler_extender.kube.reading import NOT_INSTALLED, whole_look

    seen = whole_look(api, Settings(Verdict.EXPECTED), time.monotonic)
    if not seen.installed:
        raise BadInputError(NOT_INSTALLED)
    return seen.cluster


def _answer(known: Cache, namespace: str, name: str, source: str) -> Unblocking:
    found = unblocking_of(known, namespace, name)
    if found is None:
        there = ((each.namespace, each.name) for each in known.snapshot().pods)
        meant = pod_meant(namespace, name, there)
        raise BadInputError(f"{source}no pod {namespace}/{name} with GPUs{meant}")
    return found


def _tell(found: Unblocking, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        for line in found.text:
            standard_output().print(Text(line))


def _show(found: Unblocking, *, as_json: bool) -> None:
    """Print the answer. Raises :class:`typer.Exit` with 1 where no pod is worth evicting."""
    _tell(found, as_json=as_json)
    helped = found.node or found.takes or found.reservation is not None or found.plan is not None
    if not helped:
        raise typer.Exit(1)
