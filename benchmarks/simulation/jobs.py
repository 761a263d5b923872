"""Jobs with their arrival, duration and request, and the reader of job files.

A file of jobs is CSV with a header, or JSON Lines. Both have these fields, and all but the first
are optional:

``arrival``
    Seconds from the start.
``duration``
    Seconds that the job runs once all its pods run, at full speed. The default is 3600.
``gpus``, ``pods``
    GPUs of each pod (0 to 1024, default 1), and the number of equal pods of the job (default 1).
``cpu``, ``memory``
    Requests of each pod, as Kubernetes quantities: ``500m``, ``16Gi``. The default is 0.
``model``
    Product names or globs, comma-separated. Each GPU must match one of them.
``name``
    A name for people. It need not be unique.
``annotations``
    Our keys without the prefix. In JSON they are an object, ``{"link": "nvlink"}``; in CSV a text,
    ``link=nvlink shape=ring``.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from scheduler_extender.annotations import KEYS, PREFIX, Malformed, parse
from scheduler_extender.quantities import quantity
from scheduler_extender.wire import Pod
from topology.codec import first_error
from topology.core.devices import MIB
from topology.core.memo import hashed_once
from topology.core.requests import GpuRequest

WHOLE_GPU = "nvidia.com/gpu"
MOST = 10**15  # CPUs or bytes of a pod


class JobsError(ValueError):
    """The error that jobs cannot be read.

    The message names the line, the field, the value, and what is allowed.
    """


@hashed_once
@dataclass(frozen=True)
class Ask:
    """The request of one pod, with its annotations."""

    gpus: int = 1
    cpu: int = 0  # milli
    memory: int = 0  # MiB
    annotations: tuple[tuple[str, str], ...] = ()  # without the prefix, sorted

    def pod(self, name: str, uid: str) -> Pod:
        """Return the Pod that kube-scheduler sends to an extender."""
        template = _template(self)
        metadata = msgspec.structs.replace(template.metadata, name=name, uid=uid)
        return msgspec.structs.replace(template, metadata=metadata)

    @property
    def request(self) -> GpuRequest | None:
        """The request as the extender reads it, or None without GPUs. Raises :class:`JobsError`."""
        found = parse(_template(self))
        if isinstance(found, Malformed):
            raise JobsError(found.reason)
        return None if found is None else found.request


@cache
def _template(ask: Ask) -> Pod:
    limits = {WHOLE_GPU: str(ask.gpus)} if ask.gpus else {}
    manifest = {
        "metadata": {
            "namespace": "default",
            "annotations": {PREFIX + key: value for key, value in ask.annotations},
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    return msgspec.convert(manifest, Pod)


@dataclass(frozen=True, slots=True)
class Job:
    """Equal pods that arrive together."""

    name: str
    arrives: float
    runs: float  # seconds at full speed
    ask: Ask
    pods: int = 1

    @property
    def gpus(self) -> int:
        """The GPUs of all its pods."""
        return self.pods * self.ask.gpus


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")
    arrival: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
    duration: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] = 3600.0
    gpus: Annotated[int, Field(ge=0, le=1024)] = 1
    pods: Annotated[int, Field(ge=1, le=100_000)] = 1
    cpu: Annotated[str, Field(max_length=32)] = "0"
    memory: Annotated[str, Field(max_length=32)] = "0"
    model: str = ""
    name: Annotated[str, Field(max_length=200)] = ""
    annotations: dict[str, str] = {}

    @field_validator("cpu", "memory", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        return str(value) if isinstance(value, (int, float)) else value

    @field_validator("cpu", "memory")
    @classmethod
    def _quantity(cls, value: str) -> str:
        if not 0 <= quantity(value) <= MOST:
            raise ValueError(f"allowed are quantities from 0 to {MOST:.0e}")
        return value

    @field_validator("annotations", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [word.partition("=") for word in value.split()]
        if not all(key and sep for key, sep, _ in pairs):
            raise ValueError("allowed are words such as link=nvlink, separated by spaces")
        return {key: text for key, _, text in pairs}


def read(path: Path) -> list[Job]:
    """Return the jobs of a CSV or JSON Lines file by arrival. Raises :class:`JobsError`."""
    if path.suffix not in (".csv", ".jsonl"):
        raise JobsError(f"{path}: allowed are files that end in .csv or .jsonl")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise JobsError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise JobsError(f"{path}: not UTF-8 text: {error.reason}") from error
    rows = _csv(text) if path.suffix == ".csv" else _jsonl(text, path)
    try:
        jobs = [_job(row, f"{path}: line {line}") for line, row in rows]
    except csv.Error as error:
        raise JobsError(f"{path}: not CSV: {error}") from error
    if not jobs:
        raise JobsError(f"{path}: the file has no job")
    return sorted(jobs, key=lambda job: job.arrives)


def _csv(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(text.splitlines())
    for row in reader:
        given = {key or "?": value for key, value in row.items() if value not in (None, "")}
        yield reader.line_num, given


def _jsonl(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, words in enumerate(text.splitlines(), 1):
        if not words.strip():
            continue
        try:
            row = json.loads(words)
        except (ValueError, RecursionError) as error:
            raise JobsError(f"{path}: line {line}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise JobsError(f"{path}: line {line}: an object is needed, not {words[:40]}")
        yield line, row


def _job(given: Mapping[str, Any], where: str) -> Job:
    try:
        row = _Row.model_validate(given)
    except ValidationError as error:
        raise JobsError(f"{where}: {first_error(error)}") from error
    annotations = dict(row.annotations)
    if row.model:
        annotations["gpu-model"] = row.model
    for key in annotations:
        if key not in KEYS:
            raise JobsError(f"{where}: annotations: {key!r}: allowed are {', '.join(KEYS)}")
    ask = Ask(
        row.gpus,
        int(quantity(row.cpu) * 1000),
        -(-int(quantity(row.memory)) // MIB),
        tuple(sorted(annotations.items())),
    )
    try:
        _ = ask.request
    except JobsError as error:
        raise JobsError(f"{where}: {error}") from error
    return Job(row.name, row.arrival, row.duration, ask, row.pods)
