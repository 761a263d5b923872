"""Reading files of figures, and which of them belong together.

Files are strangers' data: each is checked here, once, against :mod:`benchmarks.figures`, and the
rest of the package relies on it.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from benchmarks.figures.simulated import Run, Simulated
from benchmarks.simulation.rows import MEANS, merge
from topology.codec import first_error

ALLOWED = "allowed are files that simulate --json writes"
TIME_SPENT = "cpu_seconds"  # the one figure that differs when a simulation is played again


class ReportError(ValueError):
    """There is no report of these files; ``files`` are the places of those at fault."""

    def __init__(self, message: str, *files: int) -> None:
        super().__init__(message)
        self.files = files


def read(path: Path) -> Simulated:
    """A file's figures, checked. Raises :class:`ReportError`; the message does not name the file.

    Figures that a report does not show may be missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{error.strerror}; {ALLOWED}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"not UTF-8 text; {ALLOWED}") from error
    return parse(text)


def parse(text: str) -> Simulated:
    """The figures that a text says in JSON. Raises :class:`ReportError`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"not JSON: {error}; {ALLOWED}") from error
    if not isinstance(found, dict):
        raise ReportError(f"not an object with figures; {ALLOWED}")
    if found.get("benchmark") != "simulate":
        raise ReportError(f"benchmark is {str(found.get('benchmark'))[:40]!r}; {ALLOWED}")
    try:
        return Simulated.model_validate_json(text)
    except ValidationError as error:
        unknown = any(one["type"] == "extra_forbidden" for one in error.errors())
        version = "written by another version of the benchmarks: " if unknown else ""
        raise ReportError(f"{version}{first_error(error)}; {ALLOWED}") from error


def together(files: Sequence[Simulated]) -> list[Simulated]:
    """One set of figures per sweep, in the order they were given.

    Raises :class:`ReportError` where one simulation is there twice with different figures, or
    where no simulation is.
    """
    sweeps: dict[str, dict[int, Simulated]] = {}
    for place, file in enumerate(files):
        sweeps.setdefault(file.parameters.model_dump_json(), {})[place] = file
    return [_merged(shards) for shards in sweeps.values()]


def _merged(shards: dict[int, Simulated]) -> Simulated:
    """The shards of one sweep, by their places among the files, as one."""
    _agree(shards)
    merged = merge(list(shards.values()))
    if not merged.runs:
        message = "no simulation in it, and no other shard of its sweep is here"
        raise ReportError(message, *shards)
    return merged


def _agree(shards: dict[int, Simulated]) -> None:
    """Raise where a simulation is there twice and differs."""
    seen: dict[tuple[object, ...], tuple[int, Run]] = {}
    for place, shard in shards.items():
        for run in shard.runs:
            key = (run.cluster, run.load, run.policy, run.seed)
            before, other = seen.setdefault(key, (place, run))
            if any(getattr(run, n) != getattr(other, n) for n in MEANS if n != TIME_SPENT):
                raise ReportError(
                    f"{run.policy} on {run.cluster}, load {run.load}, seed {run.seed}: there twice "
                    "with different figures; allowed are shards that one version wrote",
                    *dict.fromkeys((before, place)),
                )
