"""The page, with parameters, a table of all means, and drawings. The template is in this folder.

The file of figures is untrusted. :func:`read` checks it once, and the rest relies on that.
"""

import json
import shlex
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import ValidationError

from benchmarks.report import drawing
from benchmarks.simulation.figures import (
    COLUMNS,
    COUNTS,
    OURS,
    PolicyRow,
    Simulated,
    Sweep,
    columns,
    rows,
)
from topology.codec import first_error

ALLOWED = "allowed are files that simulate --json writes"


class ReportError(ValueError):
    """The error that no report can be made from a file. The message says why."""


def read(path: Path) -> Simulated:
    """Return a file's figures. Raises :class:`ReportError`; the message does not name the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{error.strerror}; {ALLOWED}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"not UTF-8 text; {ALLOWED}") from error
    return parse(text)


def parse(text: str) -> Simulated:
    """Return the figures from a text in JSON. Raises :class:`ReportError`."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # no lone surrogate
    except (ValueError, RecursionError) as error:
        raise ReportError(f"not JSON: {error}; {ALLOWED}") from error
    if not isinstance(found, dict) or found.get("benchmark") != "simulate":
        raise ReportError(f"not figures of simulate; {ALLOWED}")
    try:
        return Simulated.model_validate(found)
    except ValidationError as error:
        raise ReportError(f"{first_error(error)}; {ALLOWED}") from error


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_BY_NAME = {column.name: column for column in (*COUNTS, *COLUMNS)}
# The drawings with dots: title, axis and greatest figure by the figure's name.
DRAWN = {
    "kept": ("Promises kept", "promises kept / placed jobs with annotations (%)", 100.0),
    "refused": ("Pods refused", "pods refused by kubelets", inf),
    "never_placed": ("Jobs that never ran", "jobs that never ran", inf),
    "completion_against_ours": ("Completion", f"completion time / that under {OURS}", inf),
    "wait": ("Mean wait", "mean wait of the jobs that ran (h)", inf),
}
PICTURE = ("refused", "never_placed", "wait")


def page(found: Simulated) -> str:
    """Return the page as HTML. It has no script and loads nothing."""
    source = found.parameters.jobs
    jobs = "synthetic jobs" if source == "synthetic" else f"jobs of {source}"
    cases, colours = _cases(found), _colours(found)
    every = [row for case in cases.values() for row in case]
    shown = columns(every)
    names = [column.name for column in shown]
    return _TEMPLATES.get_template("page.html.j2").render(
        title=f"{found.runs[0].jobs:,} {jobs}",
        lead=_lead(colours, every),
        clusters={run.cluster: f"{run.nodes:,} nodes, {run.gpus:,} GPUs" for run in found.runs},
        seeds=found.parameters.seeds,
        columns=shown,
        cases=cases,
        colour=colours,
        drawn=[_drawn(cases, name) for name in DRAWN if name in names and name != "wait"],
        waits=_waits(cases),
        draw=drawing,
        command=command(found.parameters),
    )


def picture(found: Simulated) -> str:
    """Return refused pods, jobs that never ran, and waiting times as an SVG document."""
    jobs, seeds = found.runs[0].jobs, found.parameters.seeds
    cases = _cases(found)
    return _TEMPLATES.get_template("refused.svg.j2").render(
        title=f"Refused pods, jobs that never ran, and waits: {jobs:,} jobs, mean of {seeds} seeds",
        cases=cases,
        drawn=[_drawn(cases, name) for name in PICTURE],
        draw=drawing,
        colour=_colours(found),
    )


def _cases(found: Simulated) -> dict[str, list[PolicyRow]]:
    """Return the rows of each cluster and load."""
    cases: dict[str, list[PolicyRow]] = {}
    for row in rows(found.runs):
        load = "arrival times unchanged" if row.load is None else f"load {row.load:g}"
        cases.setdefault(f"{row.cluster}, {load}", []).append(row)
    return cases


def _colours(found: Simulated) -> dict[str, int]:
    """Return the policies, ours first, with the numbers of their colours."""
    played = dict.fromkeys(run.policy for run in found.runs)
    policies = sorted(played, key=lambda policy: policy != OURS)
    return {policy: number % 4 for number, policy in enumerate(policies)}


def _lead(policies: Iterable[str], every: Iterable[PolicyRow]) -> str:
    """Say which share of its promises each policy kept, over all cases."""
    said = []
    for policy in policies:
        kept = [row.interval(_BY_NAME["kept"]) for row in every if row.policy == policy]
        means = sorted(100 * value.mean for value in kept if value is not None)
        if means:
            ends = dict.fromkeys((f"{means[0]:.1f}", f"{means[-1]:.1f}"))
            said.append(f"{policy} {' to '.join(ends)} %")
    return ", ".join(said)


def _drawn(
    cases: dict[str, list[PolicyRow]], name: str
) -> tuple[str, str, dict[str, tuple[str, drawing.Dots]]]:
    """Return the title and axis of a figure, and for each case its words and drawing."""
    title, axis, ceiling = DRAWN[name]
    column, found = _BY_NAME[name], {}
    for case_name, case in cases.items():
        known = [(row.policy, value) for row in case if (value := row.interval(column)) is not None]
        if known:
            words = "; ".join(f"{policy} {column.written(value)}" for policy, value in known)
            size = column.size
            means = [(who, each.mean / size, (each.half or 0.0) / size) for who, each in known]
            found[case_name] = words, drawing.dots(means, ceiling)
    return title, axis, found


def _waits(cases: dict[str, list[PolicyRow]]) -> dict[str, tuple[str, drawing.Curves]]:
    """Return the same for waiting times. Each quantile is its mean over the seeds."""
    found = {}
    for name, case in cases.items():
        given = [
            (row.policy, [sum(q) / len(q) for q in zip(*runs, strict=False)])
            for row in case
            if (runs := [run.waits for run in row.runs if run.waits])
        ]
        if given:
            words = "; ".join(
                f"{policy}: half of the jobs waited {times[len(times) // 2] / 3600:.2f} hours or "
                f"less, all {times[-1] / 3600:.2f}"
                for policy, times in given
            )
            found[name] = words, drawing.waits(given)
    return found


def command(given: Sweep) -> str:
    """Return the command that plays a sweep again, with every option."""
    options: list[tuple[str, Any]] = [("--cluster", cluster) for cluster in given.clusters]
    options += [("--jobs", given.jobs), ("--count", given.count)]
    options += [("--load", load or 0) for load in given.loads]
    options += [("--policy", policy) for policy in given.policies]
    options += [("--seeds", given.seeds), ("--demand", given.demand)]
    options += [("--communication", given.communication), ("--full-speed", given.full_speed)]
    options += [("--network", given.network)]
    words = [str(word) for option in options for word in option]
    return shlex.join(["python", "-m", "benchmarks", "simulate", *words])
