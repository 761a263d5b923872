"""The writer of the node's GPUTopology: spec and status apart, each only when it has changed.

Every write is a PUT of the whole over the version that the agent saw last. So the object is exactly
what this agent means, whatever another agent or another client has written. A conflict (409) means
that another client has written. Then the agent reads the object again and overwrites it. It creates
a missing object (404). After any other failure a write waits with exponential backoff and full
jitter, so that a cluster's agents do not all return at once after an outage.

If the API server refuses a record for its content, it would refuse it at every try, and the former
record would still look valid. So the agent writes a bare record in its place, which is not Ready
and says why.

A CRD of an older release silently drops the fields that it does not know. So a spec that is not
stored as it was written is written again every :data:`AGAIN` seconds, until the CRD is upgraded.

The agent does not watch its own object. The API server has no index for it, and would compare every
write of every agent with every agent's watch. The next write overwrites another client's change.
The next heartbeat, at the latest, repairs a deletion.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import structlog
from pydantic import ValidationError

from topology import codec
from topology.agent.model.hardware import nothing_seen
from topology.agent.model.recordlimits import plain
from topology.codec import Record, RecordError
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.report import READY, Condition, Report
from topology.kubeapi.apiserver import (
    ApiError,
    ApiFailure,
    ApiServer,
    ConflictError,
    NotFoundError,
    path,
)

log = structlog.get_logger(__name__)

RECORDS_PATH = "/apis/gpu-topology.io/v1alpha1/gputopologies"
TIMEOUT = 5.0
FIRST_BACKOFF = 0.2  # seconds
LONGEST_BACKOFF = 10.0  # seconds over which a cluster's agents spread their return
# HTTP codes with which the API server refuses a record at every try. The last is the schema's.
REFUSED = (400, 413, 422)
JITTER = 0.2  # heartbeats are this much of their period early or late

# Seconds between two writes of a spec of which the API server stores only a part. Such a write
# changes nothing, so it causes no watch event.
AGAIN = 600.0


@dataclass(slots=True)
class Counts:
    """The number of writes that worked and that failed."""

    written: Counter[str] = field(default_factory=lambda: Counter(spec=0, status=0))  # by part
    # By kind: an HTTP code, `unreachable` or `unreadable`.
    failed: Counter[str] = field(default_factory=Counter)
    # When the API server last accepted a whole report, by the publisher's clock. A bare report,
    # which only says that the record is refused, does not count.
    report_at: float | None = None


class Publisher:
    """The only writer of the object named after ``node``, for one thread at a time.

    ``heartbeat`` is in seconds; ``clock`` returns seconds of a monotonic clock.
    """

    def __init__(
        self,
        api: ApiServer,
        node: NodeName,
        clock: Callable[[], float],
        rng: random.Random,
        heartbeat: float = 60.0,
    ) -> None:
        self._api = api
        self._path = path(RECORDS_PATH, node)
        self._node = node
        self._clock = clock
        self._rng = rng
        self._heartbeat = heartbeat
        self._stored: dict[str, Any] = {}  # empty if there is no object, or if it has to be read
        self._spec: dict[str, object] | None = None
        self._report: Report | None = None
        self._topology: NodeTopology | None = None
        self._encoded: dict[str, object] | None = None
        self._sequence = 0
        self._deletions = 0
        self._boot = ""
        self._due = float("-inf")
        self._spec_due = float("inf")
        self._failures = 0
        self._not_before = float("-inf")
        self.owner: dict[str, str] | None = None  # the Node's reference for `ownerReferences`
        self.counts = Counts()
        self.problem = ""  # why the last write failed; empty after one that worked

    def former(self) -> Record | None:
        """Return the record that is there now; None if there is no usable one.

        The publisher continues the former agent's sequence. Raises :class:`ApiFailure`.
        """
        self._read()
        if not self._stored:
            return None
        try:
            record = codec.decode(self._stored)
        except RecordError as error:
            log.warning("the existing record cannot be read", problem=str(error))
            return None
        self._topology, self._encoded = record.topology, codec.encode_spec(record.topology)
        if record.report is not None:
            self._boot, self._sequence = record.report.boot_id, record.report.sequence
        return record

    def next_write(self) -> float:
        """Return when the next write is due if nothing changes: a heartbeat, or a retry.

        The time is by the publisher's clock.
        """
        return self._not_before if self._failures else self._due

    def write(self, topology: NodeTopology | None, report: Report, deletions: int = 0) -> bool:
        """Write what has changed or is due. Returns whether all of it is stored now.

        ``deletions`` counts the deleted pods that the report's agent knows of. One more deletion
        causes a write, even if nothing else has changed. ``topology`` is None if the hardware could
        not be read. Then the spec stays as it is. The report has no sequence yet.
        """
        if self._clock() < self._not_before:
            return False
        if topology is None and self._boot != report.boot_id:
            # The stored hardware is another boot's, and readers must not take it for this boot's.
            topology = nothing_seen(self._node)
        try:
            if topology is not None and topology != self._topology:
                self._encoded, self._topology = codec.encode_spec(topology), topology
            for attempt in (1, 2):
                try:
                    self._write(None if topology is None else self._encoded, report, deletions)
                    break
                except (ConflictError, NotFoundError):
                    self._stored = {}
                    if attempt == 2:
                        raise
        except (ApiFailure, ValueError) as error:
            words = codec.first_error(error) if isinstance(error, ValidationError) else str(error)
            self._failed(error, words)
            if not isinstance(error, ApiFailure) or (
                isinstance(error, ApiError) and error.status in REFUSED
            ):
                self._write_bare(report, words)
            return False
        self._failures, self.problem = 0, ""
        return True

    def _write_bare(self, report: Report, why: str) -> None:
        """Write only that the record is refused, unless that is stored already."""
        since = next((c.since for c in report.conditions), "")
        refused = Condition(
            READY,
            False,
            "RecordRefused",
            plain(f"the API server rejects the record: {why}"[:1000]),
            since,
        )
        bare = Report(report.boot_id, 0, None, conditions=(refused,))
        try:
            if not self._stored:
                self._read()
            if not self._stored:
                self._create(codec.encode_spec(NodeTopology(self._node, ())))
            if bare != self._report or self._clock() >= self._due:
                self._put_status(bare, None)
        except ApiFailure as error:
            log.warning("even a record without devices cannot be written", cause=str(error))

    def _write(self, spec: dict[str, object] | None, report: Report, deletions: int) -> None:
        beat = self._clock() >= self._due or deletions != self._deletions
        if not self._stored:
            self._read()
        if not self._stored:
            self._create(spec or codec.encode_spec(NodeTopology(self._node, ())))
            self._spec_due = self._spread(AGAIN)
        elif self._spec_is_due(spec, self._stored.get("spec", {})) or (
            self.owner is not None and self._metadata.get("ownerReferences") != [self.owner]
        ):
            self._put("spec", self._path, {"spec": spec or self._stored.get("spec", {})})
            self._spec_due = self._spread(AGAIN)
        if spec is not None:
            self._spec = spec
        if report != self._report or beat or "status" not in self._stored:
            self._put_status(report, self._topology)
            self.counts.report_at = self._clock()
            self._deletions = deletions

    def _put_status(self, report: Report, topology: NodeTopology | None) -> None:
        # A write without an answer may have been committed, so its number must not be used again.
        self._sequence = self._sequence + 1 if report.boot_id == self._boot else 1
        self._boot = report.boot_id
        status = codec.encode_report(replace(report, sequence=self._sequence), topology)
        self._put("status", f"{self._path}/status", {"status": status})
        self._report = report
        self._due = self._spread(self._heartbeat)

    def _spread(self, seconds: float) -> float:
        return self._clock() + seconds * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def _spec_is_due(self, spec: dict[str, object] | None, stored: object) -> bool:
        again = self._clock() >= self._spec_due and not _within(spec, stored)
        return spec is not None and (spec != self._spec or again)

    def _read(self) -> None:
        try:
            self._stored = msgspec.json.decode(self._api.get(self._path, timeout=TIMEOUT))
        except NotFoundError:
            self._stored = {}
        self._spec = self._report = None
        status = self._stored.get("status") or {}
        if status.get("bootID") == self._boot and isinstance(status.get("sequence"), int):
            self._sequence = max(self._sequence, status["sequence"])  # whichever client wrote it

    def _create(self, spec: dict[str, object]) -> None:
        self._send(self._api.create, "spec", RECORDS_PATH, {"spec": spec}, {"name": self._node})

    def _put(self, what: str, path: str, part: dict[str, object]) -> None:
        metadata = {k: v for k, v in self._metadata.items() if k != "managedFields"}
        parts = {"spec": self._stored.get("spec", {}), **part}
        self._send(self._api.update, what, path, parts, metadata)

    def _send(
        self,
        call: Callable[..., bytes],
        what: str,
        path: str,
        parts: dict[str, object],
        metadata: dict[str, object],
    ) -> None:
        owners = {} if self.owner is None else {"ownerReferences": [self.owner]}
        body = {"apiVersion": codec.API_VERSION, "kind": codec.KIND, **parts}
        body["metadata"] = {**metadata, **owners}
        self._stored = msgspec.json.decode(call(path, msgspec.json.encode(body), timeout=TIMEOUT))
        self.counts.written[what] += 1

    @property
    def _metadata(self) -> dict[str, object]:
        return self._stored.get("metadata", {})  # type: ignore[no-any-return]

    def _failed(self, error: Exception, words: str) -> None:
        kind = "unreachable" if isinstance(error, ApiFailure) else "unreadable"
        if isinstance(error, ApiError):
            kind = str(error.status)
        self.counts.failed[kind] += 1
        self.problem = words
        self._failures += 1
        longest = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** min(self._failures - 1, 16))
        wait = self._rng.uniform(0.0, longest)
        self._not_before = self._clock() + wait
        log.warning("write failed", cause=self.problem, failures=self._failures, wait_s=wait)


def _within(wanted: object, stored: object) -> bool:
    """Check whether all of ``wanted`` is stored; the API server may have added defaults."""
    if isinstance(wanted, dict) and isinstance(stored, dict):
        return all(key in stored and _within(wanted[key], stored[key]) for key in wanted)
    if isinstance(wanted, list) and isinstance(stored, list):
        return len(wanted) == len(stored) and all(map(_within, wanted, stored))
    return wanted == stored
