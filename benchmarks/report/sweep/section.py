"""All that there is to say about a sweep."""

from collections.abc import Iterator, Sequence
from math import prod

from benchmarks.figures.simulated import MODE, Demand, Parameters, Run, Simulated
from benchmarks.report import wording
from benchmarks.report.colours import OURS, Palette, variables
from benchmarks.report.parts import Figure, Key, Section
from benchmarks.report.sweep import course, means
from benchmarks.report.sweep.cases import Case, cases
from benchmarks.report.sweep.lead import lead
from benchmarks.report.sweep.table import table

# Policies that choose the GPUs, too (:class:`benchmarks.simulation.baselines.OwnPlugin`).
OWN_PLUGIN = ("Preserve", "Buddy")
ASKS = 6  # how many demands are written out


def section(found: Simulated, palette: Palette) -> Section:
    """The section of a sweep whose shards are put together."""
    given, all_cases = found.parameters, cases(found)
    return Section(
        mode=MODE,
        title=_title(given, found.runs),
        lead=list(lead(all_cases)),
        played=list(_played(given, all_cases)),
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
    return f"{_jobs_of(runs[0].jobs, given)} on {where}{how}"


def _missing(given: Parameters, runs: Sequence[Run]) -> Iterator[str]:
    whole = prod(map(len, (given.clusters, given.loads, given.policies, given.seeds)))
    if len(runs) < whole:
        yield (
            f"Only {len(runs)} of {whole} simulations of this sweep are here: shards are missing, "
            "and rows rest on different seeds."
        )


def _played(given: Parameters, found: Sequence[Case]) -> Iterator[tuple[str, list[str]]]:
    """Headings and what stands under each: clusters, jobs, demands, queue and seeds."""
    rules = given.rules
    size = {case.cluster: case.runs[0] for case in found}
    beside = f" and {', '.join(given.adds)} beside" if given.adds else ""
    yield (
        "Cluster" if len(size) == 1 else "Clusters",
        [
            f"{name}{beside}: {wording.several(run.nodes, 'node')}, "
            f"{wording.several(run.gpus, 'GPU')}"
            for name, run in size.items()
        ],
    )
    jobs = found[0].runs[0].jobs
    loads = ", ".join(wording.load(load) for load in given.loads)
    scaled = any(load is not None for load in given.loads)
    meant = " (GPU time asked / there until the last job has come)" if scaled else ""
    yield "Jobs", [f"{_jobs_of(jobs, given)}; {loads}{meant}"]
    asks = {cluster: _asked(found, cluster) for cluster in size}
    if len(set(asks.values())) == 1:
        yield "Asked, by GPU time", list(next(iter(asks.values())))
    else:
        words = [f"{cluster}: {'; '.join(asked)}" for cluster, asked in asks.items() if asked]
        yield "Asked, by GPU time", words
    if own := [name for name in given.policies if name in OWN_PLUGIN]:
        others = "; under the others NVIDIA’s picks them" if len(own) < len(given.policies) else ""
        which = (
            "needs a device plugin of its own, which picks"
            if len(own) == 1
            else "need device plugins of their own, which pick"
        )
        yield "Device plugins", [f"{wording.among(own)} {which} the GPUs{others}"]
    rule = "all pods of a job start or none" if rules.gang else "pods start one by one"
    yield "Queue", [f"{rules.queue}; {rule}"]
    every = "all policies play the same jobs under one seed" if len(given.policies) > 1 else ""
    yield "Seeds", ["; ".join(filter(None, [wording.seeds(given.seeds), every]))]


def _asked(found: Sequence[Case], cluster: str) -> tuple[str, ...]:
    """What was asked on a cluster, as the first run that was noted has it."""
    runs = (run for case in found if case.cluster == cluster for run in case.runs)
    asks: tuple[Demand, ...] = next((run.asks for run in runs if run.asks), ())
    whole = sum(ask.gpu_hours for ask in asks) or 1.0
    words = []
    for ask in asks[:ASKS]:
        share = wording.percent(ask.gpu_hours / whole)
        words.append(f"{share}: {ask.ask} ({wording.several(ask.jobs, 'job')})")
    if rest := asks[ASKS:]:
        share = wording.percent(sum(ask.gpu_hours for ask in rest) / whole)
        jobs = sum(ask.jobs for ask in rest)
        words.append(
            f"{share}: {wording.several(len(rest), 'other kind')} ({wording.several(jobs, 'job')})"
        )
    return tuple(words)


def _jobs_of(count: int, given: Parameters) -> str:
    """So many jobs of the sweep's source, in words."""
    source = given.workload.source
    if source == "synthetic":
        return wording.several(count, "synthetic job")
    return f"{wording.several(count, 'job')} of {source}"
