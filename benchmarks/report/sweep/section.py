"""All that there is to say about a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from benchmarks.figures.simulated import MODE, Parameters, Run, Simulated
from benchmarks.report import wording
from benchmarks.report.colours import OURS, Palette, variables
from benchmarks.report.parts import Figure, Key, Section
from benchmarks.report.sweep import course, means
from benchmarks.report.sweep.cases import Case, cases
from benchmarks.report.sweep.lead import lead
from benchmarks.report.sweep.played import jobs_of, played
from benchmarks.report.sweep.table import table


def section(found: Simulated, palette: Palette) -> Section:
    """The section of a sweep whose shards are put together."""
    given, all_cases = found.parameters, cases(found)
    return Section(
        mode=MODE,
        title=_title(given, found.runs),
        lead=list(lead(all_cases)),
        played=list(played(given, all_cases)),
        table=table(all_cases),
        keys=[_key(name, palette) for name in _policies(all_cases)],
        figures=list(_figures(all_cases, palette)),
        parameters=list(wording.flat(given.as_json())),
        command=wording.simulate(given),
        warnings=list(_missing(given, found.runs)),
    )


def _figures(found: Sequence[Case], palette: Palette) -> Iterator[Figure]:
    for figure in means.figures(found, palette):
        if figure.panels:
            yield figure
    yield from course.figures(found, palette)


def _policies(found: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(row.policy for case in found for row in case.rows))


def _key(policy: str, palette: Palette) -> Key:
    dashed = bool(palette.dashes(policy))
    return Key(policy, variables(palette.paint(policy)), dashed, policy == OURS)


def _title(given: Parameters, runs: Sequence[Run]) -> str:
    clusters, loads = given.clusters, given.loads
    where = clusters[0] if len(clusters) == 1 else f"{len(clusters)} clusters"
    how = f" at {len(loads)} loads" if len(loads) > 1 else ""
    return f"{jobs_of(runs[0].jobs, given)} on {where}{how}"


def _missing(given: Parameters, runs: Sequence[Run]) -> Iterator[str]:
    whole = prod(map(len, (given.clusters, given.loads, given.policies, given.seeds)))
    if len(runs) < whole:
        yield (
            f"Only {len(runs)} of {whole} simulations of this sweep are here: shards are missing, "
            "and rows rest on different seeds."
        )
