"""What etcd and the API server have written down by themselves, as entries of the history.

etcd keeps every version of every object here, since nothing is compacted: it is asked afterwards,
and tells all of it without a gap, in its own order. The API server's audit log says which process
has asked for a bind or a mark.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.history import Reported, Stored, Written
from tests.waiting import PATIENCE

# Of kube-apiserver: so that etcd keeps everything, in a form that can be read.
FLAGS = ("--storage-media-type=application/json", "--etcd-compaction-interval=0")
AUDITED = """
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Request
  verbs: [create]
  resources: [{group: "", resources: [pods/binding]}]
- level: Request
  verbs: [patch]
  namespaces: [gpu-topology-system]
  resources: [{group: "", resources: [pods]}]
- level: None
"""
PLACEMENT = "gpu-topology.io/placement"
TERM = "gpu-topology.io/term"
PODS = "/registry/pods/"
RECORDS = "/registry/gpu-topology.io/gputopologies/"


class EtcdHistory:
    """All that etcd has stored of pods and records, each thing once; ask it now and then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._next = 1
        self._last: dict[str, dict[str, Any]] = {}

    def new(self) -> list[Stored | Reported]:
        """What was stored since the last call. Raises :class:`httpx.HTTPError`."""
        with httpx.Client(base_url=self._url, timeout=PATIENCE) as client:
            now = self._revision(client)
            if now < self._next:
                return []
            begin = _text("/registry/")
            wanted = {"key": begin, "range_end": _text("/registry0"), "start_revision": self._next}
            asked = {"create_request": {**wanted, "progress_notify": True}}
            found: list[Stored | Reported] = []
            with client.stream("POST", "/v3/watch", json=asked) as answer:
                for line in answer.iter_lines():
                    result = json.loads(line).get("result", {})
                    assert not result.get("canceled"), result
                    events = result.get("events", ())
                    known = [e for e in events if int(e["kv"]["mod_revision"]) <= now]
                    found += [e for event in known if (e := self._entry(event)) is not None]
                    if events and int(events[-1]["kv"]["mod_revision"]) >= now:
                        break
        self._next = now + 1
        return found

    def _revision(self, client: httpx.Client) -> int:
        """The latest revision. It is made by a write of ours, so that a watch surely brings it."""
        answer = client.post("/v3/kv/put", json={"key": _text("/registry/chaos"), "value": ""})
        answer.raise_for_status()
        return int(answer.json()["header"]["revision"])

    def _entry(self, event: dict[str, Any]) -> Stored | Reported | None:
        kv = event["kv"]
        key, revision = base64.b64decode(kv["key"]).decode(), int(kv["mod_revision"])
        if key.startswith(RECORDS):
            return None if event.get("type") == "DELETE" else _reported(revision, _object(kv))
        if not key.startswith(PODS):
            return None
        gone = event.get("type") == "DELETE"
        pod = self._last.pop(key) if gone else _object(kv)
        if not gone:
            self._last[key] = pod
        meta = pod["metadata"]
        notes = meta.get("annotations", {})
        return Stored(
            revision,
            meta["namespace"],
            meta["name"],
            meta["uid"],
            pod["spec"].get("nodeName", ""),
            pod["status"].get("phase", ""),
            gone,
            notes.get(PLACEMENT, ""),
            notes.get(TERM, ""),
        )


def _reported(revision: int, record: dict[str, Any]) -> Reported | None:
    status = record.get("status")
    if not status:
        return None
    holds: dict[str, list[str]] = {}
    for allocation in status.get("allocations", ()):
        holds.setdefault(allocation["podUID"], []).extend(allocation["deviceIds"])
    return Reported(revision, record["metadata"]["name"], status.get("sequence", 0), holds)


def _object(kv: dict[str, Any]) -> dict[str, Any]:
    return json.loads(base64.b64decode(kv["value"]))  # type: ignore[no-any-return]


def _text(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def audited(log: Path) -> Iterator[Written]:
    """The writes of an audit log: each once, as far as the API server got with it."""
    last: dict[str, dict[str, Any]] = {}
    for line in log.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the API server was killed while it wrote this line
        if event["auditID"] not in last or event["stage"] == "ResponseComplete":
            last[event["auditID"]] = event
    for event in last.values():
        if (written := _written(event)) is not None:
            yield written


def _written(event: dict[str, Any]) -> Written | None:
    what, asked = event["objectRef"], event.get("requestObject") or {}
    meta = asked.get("metadata") or {}
    mark = (meta.get("annotations") or {}).get(TERM, "")
    binds = what.get("subresource") == "binding"
    if not binds and not mark:
        return None
    return Written(
        event["sourceIPs"][0],
        "bind" if binds else "mark",
        what.get("namespace", ""),
        what.get("name", ""),
        (event.get("responseStatus") or {}).get("code", 0),
        (asked.get("target") or {}).get("name", ""),
        meta.get("uid", ""),
        meta.get("resourceVersion", ""),
        mark,
    )
