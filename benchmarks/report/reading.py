"""What files may hold, and which of them belong together.

Files are strangers' data: everything that a report needs is checked here, once, and the rest of
the package relies on it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic import model_validator as validator

from benchmarks.shipped import sweep as sweeps
from topology.codec import first_error

ALLOWED = "allowed are files that simulate --json and compare --json write"


class ReportError(ValueError):
    """There is no report of these files; ``files`` are the places of those at fault."""

    def __init__(self, message: str, *files: int) -> None:
        super().__init__(message)
        self.files = files


Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
NumberText = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)?(e[+-]?\d+)?$")]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True)


class _Workload(_Checked):
    source: str
    count: int | None
    demand: str
    pod_gpus: int | None


class _Speed(_Checked):
    communication: Number
    full: Number
    network: Number


class _Rules(_Checked):
    queue: str
    gang: bool
    speed: _Speed


class _Parameters(_Checked):
    clusters: Annotated[list[str], Field(min_length=1)]
    workload: _Workload
    loads: Annotated[list[Number | None], Field(min_length=1)]
    policies: Annotated[list[str], Field(min_length=1)]
    seeds: Annotated[list[int], Field(min_length=1)]
    rules: _Rules
    adds: list[str]


class _Point(_Checked):
    arrived: Number
    allocated: Number
    fragmented: Number


class _Moment(_Checked):
    time: Number
    free: list[Count]


class _Maps(_Checked):
    nodes: list[tuple[str, Annotated[int, Field(ge=0, le=4096)]]]
    moments: list[_Moment]

    @validator(mode="after")
    def _as_many(self) -> _Maps:
        for moment in self.moments:
            if len(moment.free) != len(self.nodes):
                raise ValueError(f"free: {len(self.nodes)} masks are needed, one per node")
        return self


class _Ask(_Checked):
    ask: str
    jobs: Count
    gpu_hours: Number


class _Run(_Checked):
    cluster: str
    load: Number | None
    policy: str
    seed: int
    nodes: Count
    gpus: Count
    jobs: Count
    placed: Count
    impossible: Count
    stuck: Count
    asking: Count
    kept: Number | None
    hop: Number | None
    hop_least_tenth: Number | None
    wait: Number | None
    wait_asking: Number | None
    completion: Number | None
    completion_several: Number | None
    allocated: Number | None
    fragmented: Number | None
    cpu_seconds: Number
    hops: dict[NumberText, dict[NumberText, Count]]
    waits: Annotated[list[Number], Field(max_length=51)]
    curve: list[_Point] = []
    maps: _Maps | None = None
    asks: list[_Ask] = []

    @validator(mode="after")
    def _whole(self) -> _Run:
        if self.waits and len(self.waits) != 51:
            raise ValueError("waits: 51 quantiles are needed, or none")
        return self


class _Simulated(_Checked):
    benchmark: Literal["simulate"]
    mode: Literal["as shipped"]
    parameters: _Parameters
    runs: list[_Run]


class _Row(_Checked):
    workload: str
    policy: str
    seeds: Count | None = None
    published: Number | None = None
    ours: Number
    difference: Number | None = None


class _Given(_Checked):
    workloads: list[str]
    policies: list[str]
    seeds: list[int]


class _Compared(_Checked):
    benchmark: Literal["compare"]
    parameters: _Given
    rows: Annotated[list[_Row], Field(min_length=1)]


_MODELS: dict[object, type[BaseModel]] = {"simulate": _Simulated, "compare": _Compared}


def read(path: Path) -> dict[str, Any]:
    """A file's figures, checked. Raises :class:`ReportError`; the message does not name the file.

    Figures that a report does not show are not looked at.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{error.strerror}; {ALLOWED}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"not UTF-8 text; {ALLOWED}") from error
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"not JSON: {error}; {ALLOWED}") from error
    if not isinstance(found, dict):
        raise ReportError(f"not an object with figures; {ALLOWED}")
    name = found.get("benchmark")
    model = _MODELS.get(name) if isinstance(name, str) else None
    if model is None:
        raise ReportError(f"benchmark is {str(name)[:40]!r}; {ALLOWED}")
    try:
        model.model_validate_json(text)
    except ValidationError as error:
        raise ReportError(f"{first_error(error)}; {ALLOWED}") from error
    return found


def together(files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One set of figures per sweep and per comparison, in the order they were given.

    Raises :class:`ReportError` where one simulation is there twice with different figures, where
    no simulation is, or where another version of the benchmarks named its parameters differently.
    """
    groups: dict[str, list[int]] = {}
    for place, found in enumerate(files):
        same = {"benchmark": found["benchmark"], "parameters": found["parameters"]}
        if found["benchmark"] == "compare":
            same["rows"] = found["rows"]
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(place)
    return [_merged(files, places) for places in groups.values()]


def _merged(files: Sequence[dict[str, Any]], places: list[int]) -> dict[str, Any]:
    first = files[places[0]]
    if first["benchmark"] == "compare":
        return first
    _agree(files, places)
    try:
        merged = sweeps.merge([files[place] for place in places])
    except (KeyError, TypeError, ValueError) as error:
        message = f"written by another version of the benchmarks: {error}"
        raise ReportError(message, *places) from error
    if not merged["runs"]:
        raise ReportError("no simulation in it, and no other shard of its sweep is here", *places)
    return merged


def _agree(files: Sequence[dict[str, Any]], places: list[int]) -> None:
    """Raise where a simulation is there twice and differs."""
    seen: dict[tuple[object, ...], tuple[int, dict[str, Any]]] = {}
    for place in places:
        for run in files[place]["runs"]:
            key = (run["cluster"], run["load"], run["policy"], run["seed"])
            before, other = seen.setdefault(key, (place, run))
            if any(run[name] != other[name] for name in sweeps.ROWS if name != "cpu_seconds"):
                cluster, load, policy, seed = key
                raise ReportError(
                    f"{policy} on {cluster}, load {load}, seed {seed}: there twice with different "
                    "figures; allowed are shards that one version wrote",
                    *dict.fromkeys((before, place)),
                )
