"""The section of one sweep of ``simulate``: title, sentences, a table of every figure, drawings."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from statistics import mean

from benchmarks.figures.schema import Interval
from benchmarks.figures.simulated import (
    MODE,
    QUANTILES,
    Demand,
    Parameters,
    PolicyRow,
    Run,
    Simulated,
)
from benchmarks.report import plots, wording
from benchmarks.report.colours import OURS, STEPS, Palette, variables
from benchmarks.report.parts import Cell, Column, Figure, Group, Key, Panel, Row, Section, Table
from benchmarks.simulation.rows import spread

# Policies that choose the GPUs, too (:class:`benchmarks.simulation.baselines.OwnPlugin`).
OWN_PLUGIN = ("Preserve", "Buddy")
ASKS = 6  # how many demands are written out
HOPS = (10.0, 25.0, 50.0, 100.0, 200.0)  # GB/s that part the steps of hops
# Most GPUs of the jobs that a heading is about.
SIZES = ((2, "2 GPUs"), (4, "3 and 4 GPUs"), (8, "5 to 8 GPUs"), (float("inf"), "more GPUs"))


def section(found: Simulated, palette: Palette) -> Section:
    """The section of a sweep whose shards are put together."""
    given, all_cases = found.parameters, _cases(found)
    return Section(
        mode=MODE,
        title=_title(given, found.runs),
        lead=list(_lead(all_cases)),
        played=list(_played(given, all_cases)),
        table=_table(all_cases),
        keys=[_key(name, palette) for name in _policies(all_cases)],
        figures=[figure for figure in _figures(all_cases, palette) if figure.panels],
        parameters=list(wording.flat(given.as_json())),
        command=wording.simulate(given),
        warnings=list(_missing(given, found.runs)),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One cluster under one load: its runs, and a row per policy."""

    cluster: str
    load: float | None
    runs: Sequence[Run]
    rows: Sequence[PolicyRow]

    @property
    def name(self) -> str:
        """For captions."""
        return f"{self.cluster}, {wording.load(self.load)}"

    @property
    def ours(self) -> PolicyRow | None:
        """Our row."""
        return next((row for row in self.rows if row.policy == OURS), None)

    @property
    def others(self) -> list[PolicyRow]:
        """The rows of the others."""
        return [row for row in self.rows if row.policy != OURS]


def _cases(found: Simulated) -> list[Case]:
    """The clusters and loads of a sweep, as they come."""
    keys = dict.fromkeys((row.cluster, row.load) for row in found.rows)
    return [
        Case(
            cluster,
            load,
            [run for run in found.runs if (run.cluster, run.load) == (cluster, load)],
            [row for row in found.rows if (row.cluster, row.load) == (cluster, load)],
        )
        for cluster, load in keys
    ]


@dataclass(frozen=True, slots=True)
class Known:
    """A row that has a certain figure, and the figure."""

    row: PolicyRow
    value: Interval

    @property
    def mean(self) -> float:
        """The figure's mean."""
        return self.value.mean


def known(rows: Iterable[PolicyRow], figure: str) -> list[Known]:
    """The rows that have a figure of this name."""
    found = ((row, row.interval(figure)) for row in rows)
    return [Known(row, value) for row, value in found if value is not None]


def longest(found: Sequence[Case], figure: str) -> float:
    """The longest mean of a time in seconds; 0 where none is known."""
    rows = (row for case in found for row in case.rows)
    return max((one.mean for one in known(rows, figure)), default=0.0)


def _lead(found: Sequence[Case]) -> Iterator[str]:
    """How ours compares with the others, and how many jobs were never placed."""
    compared = [case for case in found if case.ours is not None and case.others]
    yield from _kept(compared)
    yield from _faster(compared)
    yield from _unplaced(found)


def _kept(found: Sequence[Case]) -> Iterator[str]:
    """Promises kept, case by case: ours beside the best other policy."""
    asked = []
    for case in found:
        rivals = known(case.others, "kept")
        if case.ours is not None and case.ours.kept is not None and rivals:
            asked.append((case.ours.kept.mean, max(one.mean for one in rivals)))
    if asked:
        ours, best = (
            [wording.percent(share) for share in sorted(one)] for one in zip(*asked, strict=True)
        )
        several = len(asked) > 1
        where = f"In {len(asked)} cases of cluster and load, " if several else ""
        below = sum(mine < theirs for mine, theirs in asked)
        yield (
            f"{where}{OURS} kept {wording.ends(ours)} of the promises to the jobs it placed, the "
            f"best other policy{' of each case' if several else ''} {wording.ends(best)}"
            + (f"; it kept fewer than that one in {below}." if several and below else ".")
        )


def _faster(found: Sequence[Case]) -> Iterator[str]:
    """How long a job takes under the fastest other policy of each case, beside ours."""
    rivals = [known(case.others, "completion_against_ours") for case in found]
    fastest = [min(ratios, key=lambda one: one.mean) for ratios in rivals if ratios]
    if fastest:
        several = len(fastest) > 1
        alike = sum(one.row.seeds > 1 and _alike(one.value) for one in fastest)
        cases = f" in {alike} of {len(fastest)} cases" if several else ""
        remark = f" (no difference that the seeds can tell{cases})" if alike else ""
        if all(one.row.seeds < 2 for one in fastest):
            remark = " (one seed: no intervals)"
        yield (
            f"From arrival to end a job took {wording.span([r.mean for r in fastest], '.3f')} "
            f"times as long under the fastest other policy{' of each case' if several else ''} "
            f"as under {OURS}{remark}."
        )


def _alike(ratio: Interval) -> bool:
    """Whether the interval of a ratio includes 1."""
    return abs(ratio.mean - 1) <= ratio.half


def _unplaced(found: Sequence[Case]) -> Iterator[str]:
    left: Counter[str] = Counter()
    jobs: Counter[str] = Counter()
    for case in found:
        for row in case.rows:
            left[row.policy] += row.never_placed
            jobs[row.policy] += row.jobs
    if not left.total():
        return
    words = [f"{left[OURS]:,} of {jobs[OURS]:,} under {OURS}"] if OURS in left else []
    others = [count for policy, count in left.items() if policy != OURS]
    if others:
        whole = "" if words else f" of {max(jobs.values()):,}"
        words.append(
            f"{wording.span(others, ',')}{whole} under {'the others' if words else 'each'}"
        )
    yield (
        f"Jobs never placed: {wording.among(words)}. Promises and times are those of the jobs "
        "that were."
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    """A column of figures."""

    column: Column
    name: str
    form: str
    unit: float = 1.0
    # Picks the best mean; None if none is better as such.
    best: Callable[[Iterable[float]], float] | None = None


def _table(found: Sequence[Case]) -> Table:
    """The table of all cases."""
    shown = _columns(found)
    unplaced = any(row.never_placed for case in found for row in case.rows)
    last = [Column("never placed", "jobs")] if unplaced else []
    groups = [_group(case, shown, unplaced=unplaced) for case in found]
    columns = [Column("policy", figures=False), *(one.column for one in shown), *last]
    return Table(columns, groups, _note(found))


def _columns(found: Sequence[Case]) -> list[_Shown]:
    wait, wait_unit = wording.unit(longest(found, "wait"))
    completion, completion_unit = wording.unit(longest(found, "completion"))
    shown = [
        _Shown(Column("promises kept", "%"), "kept", ".1f", 0.01, max),
        _Shown(Column("weakest hop", "GB/s"), "hop", ".1f", 1, max),
        _Shown(Column("wait", wait_unit), "wait", ".2f", wait, min),
        _Shown(Column("of those asking", wait_unit), "wait_asking", ".2f", wait, min),
        _Shown(Column("completion", completion_unit), "completion", ".2f", completion, min),
        _Shown(Column("completion", "× ours"), "completion_against_ours", ".3f", 1, min),
        _Shown(Column("several GPUs", "× ours"), "completion_several_against_ours", ".3f", 1, min),
        _Shown(Column("allocated", "%"), "allocated", ".1f"),
        _Shown(Column("fragmented", "%"), "fragmented", ".1f", 1, min),
    ]
    if all(case.ours is None for case in found):
        shown = [one for one in shown if not one.name.endswith("_against_ours")]
    return shown


def _group(case: Case, shown: Sequence[_Shown], *, unplaced: bool) -> Group:
    best = {one.name: _best(case, one) for one in shown}
    rows = []
    for row in case.rows:
        cells = [_cell(row, one, best[one.name]) for one in shown]
        left = [Cell(f"{row.never_placed:,}")] if unplaced else []
        rows.append(Row([Cell(row.policy), *cells, *left], row.policy == OURS))
    return Group(case.name, rows)


def _cell(row: PolicyRow, one: _Shown, best: str | None) -> Cell:
    value = row.interval(one.name)
    mark = value is not None and _written(value.mean, one) == best
    return Cell(spread(value, one.form, one.unit), "best" if mark else "")


def _written(mean: float, one: _Shown) -> str:
    """A mean as the table has it: means that look alike are alike."""
    return f"{mean / one.unit:{one.form}}"


def _best(case: Case, one: _Shown) -> str | None:
    """The best mean as it is written; None where all are written alike."""
    means = [row.mean for row in known(case.rows, one.name)]
    if one.best is None or len({_written(mean, one) for mean in means}) < 2:
        return None
    return _written(one.best(means), one)


def _note(found: Sequence[Case]) -> str:
    several = any(row.seeds > 1 for case in found for row in case.rows)
    spread_ = "Means over seeds ± 95 % (Student’s t). " if several else "One seed, no intervals. "
    return (
        f"{spread_}The best mean of each column is marked; intervals may overlap. Allocation is "
        "not marked: jobs over slow links hold their GPUs longer, and that counts as allocated. "
        "Promises are counted for placed jobs with annotations, the weakest hop for jobs with "
        "several GPUs; “of those asking” is the wait of jobs with annotations. Completion is from "
        "arrival to end, then beside ours seed by seed, of all jobs and of those with several "
        "GPUs. Fragmented are free GPUs that are of no use to the usual requests."
    )


def _figures(found: Sequence[Case], palette: Palette) -> Iterator[Figure]:
    """The drawings; one without panels has nothing to show."""
    yield _promises(found, palette)
    yield _completions(found, palette)
    yield _waits(found, palette)
    yield _hops(found)


def _intervals(found: Sequence[Case]) -> str:
    if all(row.seeds < 2 for case in found for row in case.rows):
        return "One seed."
    return "Means over seeds and 95 %; where an arrow is, it goes on."


def _promises(found: Sequence[Case], palette: Palette) -> Figure:
    given = {case.name: _dots(case, "kept", 0.01) for case in found}
    text = f"Of the placed jobs that asked for anything. {_intervals(found)}"
    axis = plots.Axis("promises kept, %", 0, 100)
    return Figure("Promises kept", text, _dotted(given, axis, palette))


def _completions(found: Sequence[Case], palette: Palette) -> Figure:
    if any(case.ours is not None for case in found):
        given = {case.name: _dots(case, "completion_against_ours", 1.0) for case in found}
        axis = plots.Axis("completion, × ours", 0, at=1.0)
    else:
        size, unit = wording.unit(longest(found, "completion"))
        given = {case.name: _dots(case, "completion", size) for case in found}
        axis = plots.Axis(f"completion, {unit}", 0)
    text = f"From arrival to end, left is faster. {_intervals(found)}"
    return Figure("Completion", text, _dotted(given, axis, palette))


def _dots(case: Case, name: str, size: float) -> list[plots.Dot]:
    return [
        plots.Dot(one.row.policy, one.mean / size, one.value.half / size)
        for one in known(case.rows, name)
    ]


def _dotted(given: dict[str, list[plots.Dot]], axis: plots.Axis, palette: Palette) -> list[Panel]:
    """A panel per case, all on one axis."""
    axis = axis.around([dot for dots in given.values() for dot in dots])
    return [
        Panel(
            name if len(given) > 1 else "",
            plots.dots(dots, axis, palette),
            "; ".join(f"{d.policy} {spread(Interval(d.mean, d.half), '.3g')}" for d in dots),
        )
        for name, dots in given.items()
        if dots
    ]


def _waits(found: Sequence[Case], palette: Palette) -> Figure:
    panels = []
    for case in found:
        given = list(_quantiles(case))
        if any(line.x[-1] >= 1 for line in given):
            drawing = plots.waits(given, palette)
            half = "; ".join(
                f"{line.policy} {wording.duration(line.x[45])} at 90 %" for line in given
            )
            panels.append(Panel(case.name if len(found) > 1 else "", drawing, half))
    text = "Share of the placed jobs that had started by then. Quantiles, averaged over seeds."
    return Figure("Waiting", text, panels, lined=True)


def _quantiles(case: Case) -> Iterator[plots.Line]:
    for row in case.rows:
        runs = [r.waits for r in case.runs if r.policy == row.policy and r.waits]
        if runs:
            x = [mean(values) for values in zip(*runs, strict=True)]
            yield plots.Line(row.policy, x, [100 * q for q in QUANTILES])


def _hops(found: Sequence[Case]) -> Figure:
    """Bars for jobs of each size, in each case."""
    panels, used = [], [False] * len(STEPS)
    for case in found:
        bars = list(_bars(case))
        for one in bars:
            for _, shares in one.shares:
                used = [old or share > 0 for old, share in zip(used, shares, strict=True)]
        if bars:
            panels.append(
                Panel(case.name if len(found) > 1 else "", plots.stacks(bars), _said_of(bars))
            )
    edges = [f"{edge:g}" for edge in HOPS]
    names = [
        f"below {edges[0]}",
        *(f"{a} to {b}" for a, b in pairwise(edges)),
        f"{edges[-1]} and more",
    ]
    keys = [
        Key(f"{name} GB/s", variables(colour))
        for name, colour, seen in zip(names, STEPS, used, strict=True)
        if seen
    ]
    text = "Of the best ring through a job’s GPUs, by how many it has. All seeds."
    return Figure("Weakest hop", text, panels, keys)


def _bars(case: Case) -> Iterator[plots.Bars]:
    least = 0.0
    for most, heading in SIZES:
        shares = []
        for policy in (row.policy for row in case.rows):
            steps = [0] * len(STEPS)
            for hop, count in _counts(case, policy, least, most):
                steps[_step(hop)] += count
            if whole := sum(steps):
                shares.append((policy, [n / whole for n in steps]))
        if shares:
            yield plots.Bars(heading, shares)
        least = most


def _counts(case: Case, policy: str, least: float, most: float) -> Iterator[tuple[float, int]]:
    """Hops and how many jobs had them, of jobs with more than ``least`` and at most ``most``."""
    for run in case.runs:
        for size, counts in run.hops.items():
            if run.policy == policy and least < float(size) <= most:
                yield from ((float(hop), count) for hop, count in counts.items())


def _step(hop: float) -> int:
    return sum(hop >= edge for edge in HOPS)


def _said_of(given: Sequence[plots.Bars]) -> str:
    wide = _step(50.0)
    return ". ".join(
        f"{bars.heading}, share with 50 GB/s and more: "
        + "; ".join(f"{name} {wording.percent(sum(s[wide:]))}" for name, s in bars.shares)
        for bars in given
    )


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
