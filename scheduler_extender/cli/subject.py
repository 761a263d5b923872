"""The pod that ``why`` is asked about, found at the API server: by name, or by what has made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler_extender.annotations import MANAGED, asks_for_any
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.suggestions import pod_meant
from scheduler_extender.files.clusterfile import read_pod
from scheduler_extender.files.podfile import notes_on
from scheduler_extender.files.podtemplates import pods_made_by
from scheduler_extender.state.pods.record import PodRecord, asking_record
from scheduler_extender.told.placed import Written, written_on

if TYPE_CHECKING:
    from topology.kubeapi.apiserver import ApiServer

MOST_BRIEF = 10  # pods of one workload that are named beside the one that is explained
TIMEOUT = 10.0  # seconds
# Conditions of a workload that say why it makes no pods.
TOLD = ("ReplicaFailure", "Suspended", "Failed")


@dataclass(frozen=True, slots=True)
class Subject:
    """The pod that is explained, and its placement annotation.

    ``notes`` say what was written in the wrong place, and what else holds the pod up. ``beside``
    says where the other pods of its workload are.
    """

    record: PodRecord
    written: Written | None = None
    notes: Sequence[str] = ()
    beside: Sequence[str] = field(default_factory=tuple)


def subject(api: ApiServer, namespace: str, meant: str) -> Subject:
    """The pod that ``meant`` names: NAME, pod/NAME, NAMESPACE/NAME, or KIND/NAME of a workload.

    Of a workload it is the first pod that waits, else the first one; without pods its template.
    Raises :class:`BadInputError`, and :class:`~topology.kubeapi.apiserver.ApiFailure`.
    """
    from scheduler_extender.kube.owners import POD_WORDS, kind_named, pods_of, workload

    word, _, name = meant.rpartition("/")
    kind = kind_named(word)
    if kind is None:
        pod = word.lower() in POD_WORDS
        return _pod(api, namespace if pod or not word else word, name)
    made = workload(api, kind, namespace, name)
    pods = [read for raw in pods_of(api, kind, namespace, made) if (read := _read(raw))]
    if not pods:
        return _template(kind.name, namespace, made)
    waiting = [pod for pod in pods if pod[0].node is None and not pod[0].ended]
    chosen, manifest = (waiting or pods)[0]
    others = [pod for pod, _ in pods if pod is not chosen]
    beside = [*_held_up(made)]
    for one in others[:MOST_BRIEF]:
        beside.append(f"{one.name} is on {one.node}" if one.node else f"{one.name} waits, too")
    if len(others) > MOST_BRIEF:
        beside.append(f"{len(others) - MOST_BRIEF} more pods of {meant}")
    return replace(_subject(api, chosen, manifest), beside=tuple(beside))


def _pod(api: ApiServer, namespace: str, name: str) -> Subject:
    from topology.kubeapi.apiserver import NotFoundError, path

    try:
        body = api.get(path("/api/v1/namespaces", namespace, "pods", name), timeout=TIMEOUT)
    except NotFoundError as error:
        meant = pod_meant(namespace, name, _pods(api, namespace, name))
        raise BadInputError(f"there is no pod {namespace}/{name}{meant}") from error
    manifest = msgspec.json.decode(body, type=dict[str, Any])
    read = _read(manifest)
    if read is None:
        told = "; ".join((*_claiming(manifest), *_misplaced(api, namespace, manifest)))
        raise BadInputError(f"pod {namespace}/{name} asks for no GPUs{told and f' ({told})'}")
    return _subject(api, *read)


def _pods(api: ApiServer, namespace: str, name: str) -> Iterator[tuple[str, str]]:
    """Pods of this name, and some of this namespace, as far as the caller may list them."""
    from topology.kubeapi.apiserver import ApiError, path

    everywhere = ("/api/v1/pods", [("fieldSelector", f"metadata.name={name}"), ("limit", "10")])
    here = (path("/api/v1/namespaces", namespace, "pods"), [("limit", "500")])
    for place, query in (everywhere, here):
        with suppress(ApiError):
            found = msgspec.json.decode(api.get(place, query, timeout=TIMEOUT))
            metadata = [item["metadata"] for item in found["items"]]
            yield from ((each["namespace"], each["name"]) for each in metadata)


def _read(manifest: dict[str, Any]) -> tuple[PodRecord, dict[str, Any]] | None:
    """The record of a pod, and its manifest; None where it asks for no GPUs."""
    try:
        record = asking_record(read_pod(manifest), MANAGED)
    except ValueError as error:
        name = (manifest.get("metadata") or {}).get("name", "")
        raise BadInputError(f"pod {name}: {error}") from error
    return None if record is None else (record, manifest)


def _subject(api: ApiServer, record: PodRecord, manifest: dict[str, Any]) -> Subject:
    notes = [*_gates(record, manifest), *_misplaced(api, record.namespace, manifest)]
    return Subject(record, written_on(read_pod(manifest)), tuple(notes))


def _claiming(manifest: dict[str, Any]) -> Iterator[str]:
    """Why nobody judges the claims that a pod has."""
    pod = read_pod(manifest)
    if not pod.spec.resource_claims:
        return
    if asks_for_any(pod, MANAGED):
        yield "its annotations require nothing of its claims' GPUs, so any will do"
    else:
        yield (
            "kube-scheduler asks the extender about a pod with claims where a container has "
            f"{MANAGED[0]} among its limits, with an amount of 0"
        )


def _misplaced(api: ApiServer, namespace: str, manifest: dict[str, Any]) -> Iterator[str]:
    """What was written in the wrong place, on the pod or on who has made it."""
    from scheduler_extender.kube.owners import owners_of

    yield from notes_on("Pod", manifest, [])
    for owner in owners_of(api, namespace, manifest):
        yield from notes_on(str(owner["kind"]), {}, [owner.get("metadata")])


def _gates(record: PodRecord, manifest: dict[str, Any]) -> Iterator[str]:
    gates = read_pod(manifest).spec.scheduling_gates or ()
    names = [str(gate.get("name")) for gate in gates if isinstance(gate, Mapping)]
    if names and record.node is None:
        told = ", ".join(names[:5])
        yield f"the pod has scheduling gates, so kube-scheduler leaves it alone: {told}"


def _template(kind: str, namespace: str, made: dict[str, Any]) -> Subject:
    """The pod that a workload would make, where it has made none yet."""
    name = str((made.get("metadata") or {}).get("name", ""))
    for manifest, outside, _ in pods_made_by(made):
        manifest["metadata"] = {**manifest["metadata"], "namespace": namespace, "uid": "none-yet"}
        read = _read(manifest)
        if read is not None:
            said = f"{kind} {name} has no pods yet: this is about its template"
            notes = tuple(notes_on(kind, manifest, outside))
            return Subject(read[0], None, notes, (said, *_held_up(made)))
    raise BadInputError(
        f"{kind} {namespace}/{name} has no pods with GPUs, and no template that asks for some"
    )


def _held_up(made: Mapping[str, Any]) -> Iterator[str]:
    """Why a workload makes no (more) pods, by its own status: a quota, or it is suspended."""
    status = made.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, Mapping) and condition.get("status") == "True":
            kind, message = condition.get("type"), condition.get("message") or ""
            if kind in TOLD:
                yield f"{made.get('kind')} says {kind}: {message}".rstrip(": ")
