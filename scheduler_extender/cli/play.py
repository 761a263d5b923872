"""Plays GPU nodes in a cluster: registers them, prints what becomes of pods, removes them."""

import signal
import time
from collections import deque
from math import inf

import typer

from scheduler_extender.annotations import PLAY_SECONDS
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import tell
from scheduler_extender.cli.interrupts import pause, press
from scheduler_extender.cli.kubeconfig import Access, asking
from scheduler_extender.explain.wording import gpus_text
from scheduler_extender.files.clusterfile import ClusterFile
from scheduler_extender.kube.sinks import RECORDS_PATH
from scheduler_extender.simulator.pods import PodEntry
from scheduler_extender.simulator.registration import (
    PLAYED,
    TIMEOUT,
    RegisteredNodes,
    missing_rights,
    remove,
    survey,
)
from scheduler_extender.simulator.scene import Observer
from scheduler_extender.web.overview import some
from topology.kubeapi.apiserver import ApiError, ApiFailure, ApiServer, NotFoundError

LOOK = 0.2  # seconds between two looks at what has happened
AGAIN = 5.0  # seconds before a removal is tried again
HOPELESS = (400, 401, 403, 404, 405, 422)  # statuses after which the same request fails again


def play_until_stopped(content: ClusterFile, access: Access, *, beside: bool) -> None:
    """Play the nodes until Ctrl-C, SIGTERM, the end of the terminal, or the nodes' removal.

    Raises :class:`BadInputError`.
    """
    lines = _Lines(content)
    with asking(access) as (api, _):
        _check(api, content, beside=beside)
        nodes = RegisteredNodes(api, content, lines)
        signal.signal(signal.SIGTERM, press)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
            signal.signal(signal.SIGHUP, press)
        try:
            with nodes:
                tell(f"nodes played: {len(nodes.nodes)}, tainted {PLAYED}; Ctrl-C removes them")
                while not (nodes.errors or nodes.removed):
                    pause(LOOK)
                    while lines.ready:
                        typer.echo(lines.ready.popleft())
        finally:
            if nodes.removed:
                tell("nodes were removed meanwhile; if some are left: gpu-topology play --remove")
            else:
                tell("removing the nodes; if that is stopped: gpu-topology play --remove")
                remove_played(access)
    if nodes.errors:
        raise nodes.errors[0]


def remove_played(access: Access) -> None:
    """Remove all played nodes, again and again while the API server is away.

    Raises :class:`BadInputError`.
    """
    with asking(access) as (api, _):
        tell(f"nodes removed: {_removed(api)}")


def _removed(api: ApiServer) -> int:
    """Remove all played nodes, and return how many there were before the first try."""
    found = set[str]()
    while True:
        try:
            played, _, _ = survey(api)
            found |= played
            remove(api, played)
        except ApiFailure as error:
            if isinstance(error, ApiError) and error.status in HOPELESS:
                raise BadInputError(str(error)) from error
            tell(f"note: trying again until Ctrl-C: {error}")
            time.sleep(AGAIN)
        else:
            return len(found)


def _check(api: ApiServer, content: ClusterFile, *, beside: bool) -> None:
    """Refuse a cluster where the nodes cannot be played, and remove what an earlier play has left.

    Raises :class:`BadInputError`.
    """
    if missing := missing_rights(api):
        raise BadInputError(f"you need permission to {', '.join(missing)}")
    try:
        api.get(RECORDS_PATH, [("limit", "1")], timeout=TIMEOUT)
    except NotFoundError as error:
        raise BadInputError(
            "the API server knows no GPUTopology: install its CustomResourceDefinition, "
            "kubectl apply --server-side -f manifests/base/crd.yaml"
        ) from error
    played, others, with_gpus = survey(api)
    if taken := others & {str(record.topology.name) for record in content.records}:
        raise BadInputError(f"the cluster has {some(sorted(taken))} already, and not from a play")
    if with_gpus and not beside:
        raise BadInputError(
            f"the cluster has GPU nodes ({some(sorted(with_gpus))}): --beside-gpu-nodes plays "
            "beside them"
        )
    if played:
        tell(f"nodes removed of an earlier play: {_removed(api)}")


class _Lines(Observer):
    """What becomes of GPU pods, in lines that are ready to be printed."""

    def __init__(self, content: ClusterFile) -> None:
        self.ready: deque[str] = deque()
        self._nodes = {record.topology.name: record.topology for record in content.records}

    def admitted(self, entry: PodEntry, held: tuple[int, ...]) -> None:
        gpus = [self._nodes[entry.node].gpus[p].index for p in held]
        unread = entry.job.runs == inf and PLAY_SECONDS in (entry.pod.metadata.annotations or {})
        note = f" ({PLAY_SECONDS} is no number: it runs on)" if unread else ""
        if gpus:
            self._add(entry, f"runs on {entry.node}, {gpus_text(gpus)}{note}")

    def refused(self, entry: PodEntry, reason: str) -> None:
        self._add(entry, f"is refused by {entry.node}: {reason}")

    def released(self, entry: PodEntry) -> None:
        if entry.request.containers:
            self._add(entry, f"has ended on {entry.node}")

    def _add(self, entry: PodEntry, what: str) -> None:
        self.ready.append(f"{entry.record.namespace}/{entry.record.name} {what}")
