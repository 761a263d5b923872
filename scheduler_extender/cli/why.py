"""``gpu-topology why``: why a pod waits, what would help, and what a placed pod got.

It needs no extender: it reads nodes, pods and records with the caller's own rights and decides with
the extender's code. Binds that are being written only the extender knows; ``--admin`` asks it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from scheduler_extender.cli import whytext
from scheduler_extender.cli.adminport import (
    ADMIN,
    AdminCaOption,
    AdminPort,
    ContextOption,
    TokenOption,
)
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import cluster_file, console, one_of
from scheduler_extender.cli.kubeconfig import KubeconfigOption, asking
from scheduler_extender.cli.node import token_of
from scheduler_extender.files.clusterfile import feed, read_pod
from scheduler_extender.files.podfile import notes_on, pods_made_by
from scheduler_extender.limits import UNBLOCK_SECONDS
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import Settings
from scheduler_extender.state.pods import PodRecord, pod_record
from scheduler_extender.why.explanation import explanation_of
from scheduler_extender.why.nearest import View
from scheduler_extender.why.placed import Written, written_on
from topology.core.placement import Verdict

if TYPE_CHECKING:
    from topology.kubeapi.apiserver import ApiServer

MOST_BRIEF = 10
"""Pods of one workload that are named beside the one that is explained."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The pod that is explained: as a record, or only by its name for the admin port.

    ``beside`` says where the other pods of its workload are.
    """

    record: PodRecord
    written: Written | None = None
    notes: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)


def why(
    pod: Annotated[str, typer.Argument(metavar="POD", hidden=True)],
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="The pod's namespace. Without it: the one of the context.",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORM", help="text or json.")
    ] = "text",
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Cluster file in place of a cluster, to try things out."),
    ] = None,
    require: Annotated[
        str,
        typer.Option(
            metavar="VERDICT",
            help="What the extender is run with: guaranteed or expected.",
        ),
    ] = "expected",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask the extender's admin port, forwarded to here, in place of the API server: it "
            f"knows the binds that are being written. For an installed one: {ADMIN}.",
        ),
    ] = None,
    admin_ca: AdminCaOption = None,
    token: TokenOption = None,
) -> None:
    """Say why a pod waits and what would help, or what GPUs it got.

    POD is the name of a pod, or KIND/NAME of what makes pods, such as deployment/train, job/train,
    jobset/train or pytorchjob/train. The command needs a kubeconfig and the rights to list nodes,
    pods and gputopologies, and says what it may not see. Exits with 1 if the pod waits and no node
    would take it.
    """
    as_json = one_of("--output", output, {"json": True}, False, "text")
    weakest = one_of("--require", require, {"guaranteed": Verdict.GUARANTEED}, Verdict.EXPECTED)
    if admin is not None:
        url = AdminPort(admin.rstrip("/"), admin_ca, token or token_of(kubeconfig, context))
        found = _from_extender(url, namespace or "default", pod)
        notes: list[str] = []
    elif cluster is not None:
        found, notes = _from_file(cluster, namespace or "default", pod, weakest)
    else:
        found, notes = _from_api_server(kubeconfig, context, namespace, pod, weakest)
    found["notes"] = [*found.get("notes", ()), *notes]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        plan = "" if cluster is not None else f"kubectl gpu-topology unblock {found['pod']}"
        whytext.show(console, found, plan)
    goes_nowhere = not found.get("placed") and not found.get("takes")
    raise typer.Exit(1 if goes_nowhere else 0)


def _from_extender(port: AdminPort, namespace: str, pod: str) -> dict[str, Any]:
    where, _, name = pod.removeprefix("pod/").rpartition("/")
    at = f"/v1/explain/{quote(where or namespace, safe='')}/{quote(name, safe='')}"
    found = port.get(at)
    if found is None:
        from scheduler_extender.kube.owners import kind_named

        if where and kind_named(where) is not None:
            raise BadInputError(f"--admin: the extender explains pods: give one of {pod}")
        raise BadInputError(f"the extender knows of no pod {where or namespace}/{name} with GPUs")
    return found


def _from_file(
    path: Path, namespace: str, pod: str, require: Verdict
) -> tuple[dict[str, Any], list[str]]:
    known = Cluster(time.monotonic, Settings(require, None, all_pods_known=False))
    content = cluster_file(path)
    feed(known, content)
    where, _, name = pod.removeprefix("pod/").rpartition("/")
    record = known.pod_named(where or namespace, name)
    if record is None:
        raise BadInputError(f"{path}: no pod {where or namespace}/{name} with GPUs in it")
    asked = _Asked(record, content.written.get(record.uid))
    return _explained(known, asked, View(time.time())), []


def _explained(cluster: Cluster, asked: _Asked, view: View) -> dict[str, Any]:
    until = cluster.clock() + UNBLOCK_SECONDS
    found = explanation_of(
        cluster,
        cluster.cluster_facts(),
        asked.record,
        view,
        written=asked.written,
        late=lambda: cluster.clock() > until,
    )
    return found.as_json()


def _from_api_server(
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
    pod: str,
    require: Verdict,
) -> tuple[dict[str, Any], list[str]]:
    from scheduler_extender.kube.onelook import one_look

    with asking(kubeconfig, context) as (api, usual):
        where = namespace or usual
        asked = _asked_for(api, where, pod)
        seen = one_look(api, where, Settings(require), time.monotonic)
    known = seen.cluster.pod(asked.record.uid)
    if known is not None and asked.record.node == known.node:
        asked = _Asked(known, asked.written, asked.notes, asked.beside)
    found = _explained(seen.cluster, asked, View(time.time(), seen.namespaces))
    return found, [*asked.beside, *asked.notes, *seen.notes]


def _asked_for(api: ApiServer, namespace: str, pod: str) -> _Asked:
    """The pod that is meant, of a workload one that waits. Raises :class:`BadInputError`."""
    from scheduler_extender.kube.owners import POD_WORDS, kind_named, pods_of, workload

    word, _, name = pod.rpartition("/")
    if not word or word.lower() in POD_WORDS:
        return _pod(api, namespace, name)
    kind = kind_named(word)
    if kind is None:
        return _pod(api, word, name)  # NAMESPACE/NAME, as other commands take it
    made = workload(api, kind, namespace, name)
    pods = [_pod(api, namespace, each) for each in pods_of(api, kind, namespace, made)[:200]]
    if not pods:
        return _template(kind.name, namespace, made)
    held_up = list(_held_up(made))
    waiting = [one for one in pods if one.record.node is None and not one.record.ended]
    chosen = (waiting or pods)[0]
    others = [one.record for one in pods if one is not chosen]
    beside = [
        f"{each.name} is on {each.node}" if each.node else f"{each.name} waits, too"
        for each in others[:MOST_BRIEF]
    ]
    if len(others) > MOST_BRIEF:
        beside.append(f"{len(others) - MOST_BRIEF} more pods of {pod}")
    return _Asked(chosen.record, chosen.written, chosen.notes, [*held_up, *beside])


def _held_up(made: Mapping[str, Any]) -> Iterator[str]:
    """Why a workload makes no (more) pods, by its own status: a quota, or it is suspended."""
    status = made.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if _is_map(condition) and condition.get("status") == "True":
            kind, message = condition.get("type"), condition.get("message") or ""
            if kind in ("ReplicaFailure", "Suspended", "Failed"):
                yield f"{made.get('kind')} says {kind}: {message}".rstrip(": ")


def _pod(api: ApiServer, namespace: str, name: str) -> _Asked:
    from scheduler_extender.kube.owners import owners_of
    from topology.kubeapi.apiserver import NotFoundError
    from topology.kubeapi.paths import path

    try:
        body = api.get(path("/api/v1/namespaces", namespace, "pods", name), timeout=10.0)
    except NotFoundError as error:
        raise BadInputError(f"there is no pod {namespace}/{name}") from error
    manifest = msgspec.json.decode(body, type=dict[str, Any])
    owners = owners_of(api, namespace, manifest)
    notes = [
        note
        for kind, outside in _around(owners)
        for note in notes_on(kind, manifest if kind == "Pod" else {}, outside)
    ]
    return _record(manifest, f"{namespace}/{name}", notes)


def _around(owners: list[dict[str, Any]]) -> list[tuple[str, list[object]]]:
    """The pod itself, then each owner's own metadata, the nearest first."""
    made: list[tuple[str, list[object]]] = [("Pod", [])]
    return made + [(str(owner["kind"]), [owner.get("metadata")]) for owner in owners]


def _template(kind: str, namespace: str, made: dict[str, Any]) -> _Asked:
    """The pod that a workload would make, where it has made none yet."""
    name = str((made.get("metadata") or {}).get("name", ""))
    for manifest, outside in pods_made_by(made):
        manifest["metadata"] = {**manifest["metadata"], "namespace": namespace, "uid": "none-yet"}
        try:
            found = _record(manifest, name, list(notes_on(kind, manifest, outside)))
        except BadInputError:
            continue
        found.beside.append(f"{kind} {name} has no pods yet: this is about its template")
        found.beside.extend(_held_up(made))
        return found
    raise BadInputError(
        f"{kind} {namespace}/{name} has no pods, and no template that asks for GPUs"
    )


def _record(manifest: Mapping[str, Any], name: str, notes: list[str]) -> _Asked:
    from scheduler_extender.annotations import MANAGED

    try:
        pod = read_pod(manifest)
    except ValueError as error:
        raise BadInputError(f"{name}: {error}") from error
    record = pod_record(pod, MANAGED)
    if record is None:
        told = f" ({'; '.join(notes)})" if notes else ""
        raise BadInputError(f"pod {name} asks for no GPUs{told}")
    gates = [str(gate.get("name")) for gate in pod.spec.scheduling_gates or () if _is_map(gate)]
    if gates and record.node is None:
        told = ", ".join(gates[:5])
        notes = [f"the pod has scheduling gates, so kube-scheduler leaves it alone: {told}", *notes]
    return _Asked(record, written_on(pod), notes)


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping)
