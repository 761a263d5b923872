"""The history of a run: what was seen, one JSON object a line, in the order in which it was seen.

``at`` is seconds since the run began. A ``revision`` is etcd's, which counts all writes of the
whole cluster: what the API server stored is put in order by it, never by ``at``.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self, TextIO


@dataclass(frozen=True, slots=True)
class Node:
    """A node: the ids of its GPUs, and which pairs of them an NVLink joins."""

    name: str
    devices: list[str]
    linked: list[list[str]]


@dataclass(frozen=True, slots=True)
class Created:
    """The API server has taken a pod of ours. ``linked`` says that every pair of its ``gpus`` is to
    be joined by an NVLink."""

    at: float
    uid: str
    name: str
    gpus: int
    linked: bool


@dataclass(frozen=True, slots=True)
class Removed:
    """We are about to ask the API server to delete a pod."""

    at: float
    name: str


@dataclass(frozen=True, slots=True)
class Given:
    """A kubelet has admitted a pod, and given it these devices."""

    at: float
    node: str
    uid: str
    devices: list[str]


@dataclass(frozen=True, slots=True)
class Refused:
    """A kubelet has turned a pod away."""

    at: float
    node: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """A pod has ended on its node: its devices are free from now on."""

    at: float
    node: str
    uid: str


@dataclass(frozen=True, slots=True)
class Stored:
    """etcd has stored a pod, or deleted it (``gone``).

    ``placement`` is the extender's annotation as it stands, ``mark`` that of a replica's own pod
    (``TERM IDENTITY``, then `` fenced``). The last version of a deleted pod is what is stored here.
    """

    revision: int
    namespace: str
    name: str
    uid: str
    node: str = ""
    phase: str = ""
    gone: bool = False
    placement: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Reported:
    """etcd has stored a node's report: which pod (by UID) holds which devices."""

    revision: int
    node: str
    sequence: int
    holds: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Written:
    """The API server has answered, or begun (``code`` 0), a write of a replica.

    ``source`` is the network address that this process alone has. ``kind`` is ``bind`` or ``mark``;
    ``version`` is the resourceVersion that the write names, if any.
    """

    source: str
    kind: str
    namespace: str
    name: str
    code: int
    node: str = ""
    uid: str = ""
    version: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """A replica has answered kube-scheduler, or the connection broke (``code`` 0).

    ``replica`` is its port. ``error`` is the answer's own; ``node`` and ``passed`` say what was
    asked for and granted.
    """

    at: float
    asked: float
    replica: int
    verb: str
    code: int
    uid: str
    node: str = ""
    error: str = ""
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something was broken, or mended, on purpose."""

    at: float
    what: str


Entry = (
    Node
    | Created
    | Removed
    | Given
    | Refused
    | Released
    | Stored
    | Reported
    | Written
    | Answered
    | Fault
)
KINDS: dict[str, type[Any]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Node, Created, Removed, Given, Refused, Released),
        *(Stored, Reported, Written, Answered, Fault),
    )
}


class HistoryError(ValueError):
    """A line of a history cannot be read; the message names file and line."""


def line_of(entry: Entry) -> str:
    """One line of the file, without its end."""
    return json.dumps({"entry": type(entry).__name__.lower()} | asdict(entry))


def read(path: Path) -> Iterator[Entry]:
    """The entries of a file in their order. Raises :class:`HistoryError`."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield entry_of(line)
            except (ValueError, KeyError, TypeError) as error:
                raise HistoryError(f"{path}:{number}: {error}") from error


def entry_of(line: str) -> Entry:
    """The entry of a line. Raises :class:`ValueError`, :class:`KeyError` or :class:`TypeError`."""
    found = json.loads(line)
    kind = KINDS[found.pop("entry")]
    unknown = found.keys() - {field.name for field in fields(kind)}
    if unknown:
        raise KeyError(f"unknown fields {sorted(unknown)}")
    return kind(**found)  # type: ignore[no-any-return]


class Recorder:
    """Writes a history while the context is open; any thread may add to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        self._file = self.path.open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return round(time.monotonic() - self._began, 4)

    def add(self, *entries: Entry) -> None:
        """Add entries; those that come after the end are dropped."""
        self.extend(entries)

    def extend(self, entries: Iterable[Entry]) -> None:
        """The same for many."""
        text = "".join(line_of(entry) + "\n" for entry in entries)
        with self._lock:
            if self._file is not None:
                self._file.write(text)
                self._file.flush()
