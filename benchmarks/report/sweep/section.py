"""The section of one sweep of ``simulate``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Any

from benchmarks.report import maps, plots, wording
from benchmarks.report.colours import OURS, STEPS, Palette, variables
from benchmarks.report.parts import Cell, Column, Figure, Group, Key, Panel, Row, Section, Table
from benchmarks.shipped.summary import QUANTILES
from benchmarks.shipped.sweep import spread

MODE = "as shipped"
ASKS = 6
"""How many demands are written out."""
HOPS = (10.0, 25.0, 50.0, 100.0, 200.0)
"""GB/s that part the steps of hops."""
SIZES = ((2, "2 GPUs"), (4, "3 and 4 GPUs"), (8, "5 to 8 GPUs"), (float("inf"), "more GPUs"))
"""Most GPUs of the jobs that a heading is about."""


@dataclass(frozen=True, slots=True)
class Case:
    """One cluster under one load: its runs, and a row per policy."""

    cluster: str
    load: float | None
    runs: Sequence[dict[str, Any]]
    rows: Sequence[dict[str, Any]]

    @property
    def name(self) -> str:
        """For captions."""
        return f"{self.cluster}, {wording.load(self.load)}"

    @property
    def ours(self) -> dict[str, Any] | None:
        """Our row."""
        return next((row for row in self.rows if row["policy"] == OURS), None)

    @property
    def others(self) -> list[dict[str, Any]]:
        """The rows of the others."""
        return [row for row in self.rows if row["policy"] != OURS]

    @property
    def noted(self) -> list[dict[str, Any]]:
        """The runs with curves and maps."""
        return [run for run in self.runs if run.get("curve")]


def section(found: dict[str, Any], palette: Palette) -> Section:
    """All that there is to say about a sweep, merged."""
    given, all_cases = found["parameters"], cases(found)
    return Section(
        mode=MODE,
        title=_title(given, found["runs"]),
        lead=list(_lead(all_cases)),
        played=list(_played(given, all_cases)),
        table=_table(all_cases),
        keys=[_key(name, palette) for name in _policies(all_cases)],
        figures=list(_figures(all_cases, palette)),
        parameters=list(wording.flat(given)),
        command=wording.simulate(given),
        warnings=list(_missing(given, found["runs"])),
    )


def cases(found: dict[str, Any]) -> list[Case]:
    """The clusters and loads of a sweep, as they come."""
    keys = dict.fromkeys((row["cluster"], row["load"]) for row in found["rows"])
    return [
        Case(
            cluster,
            load,
            [run for run in found["runs"] if (run["cluster"], run["load"]) == (cluster, load)],
            [row for row in found["rows"] if (row["cluster"], row["load"]) == (cluster, load)],
        )
        for cluster, load in keys
    ]


def _policies(found: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(row["policy"] for case in found for row in case.rows))


def _key(policy: str, palette: Palette) -> Key:
    dashed = bool(palette.dashes(policy))
    return Key(policy, variables(palette.paint(policy)), dashed, policy == OURS)


# Words.


def _title(given: dict[str, Any], runs: Sequence[dict[str, Any]]) -> str:
    clusters, loads = given["clusters"], given["loads"]
    where = clusters[0] if len(clusters) == 1 else f"{len(clusters)} clusters"
    how = f" at {len(loads)} loads" if len(loads) > 1 else ""
    return f"{_jobs_of(runs[0]['jobs'], given)} on {where}{how}"


def _jobs_of(count: int, given: dict[str, Any]) -> str:
    source = given["workload"]["source"]
    if source == "synthetic":
        return wording.several(count, "synthetic job")
    return f"{wording.several(count, 'job')} of {source}"


def _missing(given: dict[str, Any], runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    parts = (given[name] for name in ("clusters", "loads", "policies", "seeds"))
    whole = 1
    for part in parts:
        whole *= len(part)
    if len(runs) < whole:
        yield (
            f"Only {len(runs)} of {whole} simulations of this sweep are here: shards are missing, "
            "and rows rest on different seeds."
        )


def _lead(found: Sequence[Case]) -> Iterator[str]:
    compared = [case for case in found if case.ours is not None and case.others]
    if len(compared) == 1 and len(found) == 1:
        yield from _lead_of_one(compared[0])
    elif compared:
        yield from _lead_of_several(compared)
    else:
        yield from _lead_without_ours(found)
    yield from _unplaced(found)


def _lead_of_one(case: Case) -> Iterator[str]:
    ours = case.ours
    assert ours is not None
    rivals = [row for row in case.others if row["kept"] is not None]
    if ours["kept"] is not None and rivals:
        most = max(row["kept"][0] for row in rivals)
        best = wording.among([row["policy"] for row in rivals if row["kept"][0] == most])
        kept, theirs = wording.percent(ours["kept"][0]), wording.percent(most)
        rest = (
            f"and so did {best}" if kept == theirs else f"of the others, {best} kept most, {theirs}"
        )
        yield f"{OURS} kept {kept} of the promises to the jobs it placed, {rest}."
    fastest = _fastest(case)
    if fastest is not None and ours["completion"] is not None:
        ratio = fastest["completion_against_ours"]
        yield (
            f"From arrival to end a job took {wording.duration(ours['completion'][0])} under "
            f"{OURS}, and {spread(ratio, '.3f')} times as long under {fastest['policy']}, the "
            f"fastest of the others{_remark(ratio, fastest['seeds'])}."
        )


def _fastest(case: Case) -> dict[str, Any] | None:
    rivals = [row for row in case.others if row["completion_against_ours"] is not None]
    return min(rivals, key=lambda row: float(row["completion_against_ours"][0]), default=None)


def _told(ratio: Sequence[float], seeds: int) -> str:
    """What the seeds say of a ratio to ours: ``longer``, ``shorter`` or nothing."""
    middle, half = ratio
    if seeds < 2 or abs(middle - 1) <= half:
        return ""
    return "longer" if middle > 1 else "shorter"


def _remark(ratio: Sequence[float], seeds: int) -> str:
    if seeds < 2:
        return " (one seed: no interval)"
    return "" if _told(ratio, seeds) else " (no difference that the seeds can tell)"


def _lead_of_several(found: Sequence[Case]) -> Iterator[str]:
    asked = []
    for case in found:
        rivals = [row["kept"][0] for row in case.others if row["kept"] is not None]
        if case.ours is not None and case.ours["kept"] is not None and rivals:
            asked.append((case.ours["kept"][0], max(rivals)))
    if asked:
        ours = [wording.percent(share) for share in sorted(share for share, _ in asked)]
        best = [wording.percent(share) for share in sorted(share for _, share in asked)]
        below = sum(mine < theirs for mine, theirs in asked)
        yield (
            f"In {wording.several(len(asked), 'case')} of cluster and load, {OURS} kept "
            f"{wording.ends(ours)} of the promises to the jobs it placed, the best other policy "
            f"of each case {wording.ends(best)}"
            + (f"; it kept fewer than that one in {below}." if below else ".")
        )
    fastest = [row for row in map(_fastest, found) if row is not None]
    if fastest:
        ratios = [row["completion_against_ours"] for row in fastest]
        told = Counter(_told(row["completion_against_ours"], row["seeds"]) for row in fastest)
        counts = (
            f"longer than under ours in {told['longer']}, shorter in {told['shorter']}, not told "
            f"apart by the seeds in {told['']}"
        )
        one = all(row["seeds"] < 2 for row in fastest)
        yield (
            f"From arrival to end a job took {wording.span([r[0] for r in ratios], '.3f')} times "
            "as long under the fastest other policy of each case"
            f"{' (one seed: no intervals)' if one else f': {counts}'}."
        )


def _lead_without_ours(found: Sequence[Case]) -> Iterator[str]:
    for case in found:
        rows = [row for row in case.rows if row["completion"] is not None]
        if rows:
            fastest = min(rows, key=lambda row: float(row["completion"][0]))
            yield (
                f"{case.name}: a job took least from arrival to end under {fastest['policy']}, "
                f"{wording.duration(fastest['completion'][0])}."
            )


def _unplaced(found: Sequence[Case]) -> Iterator[str]:
    left: Counter[str] = Counter()
    jobs: Counter[str] = Counter()
    for case in found:
        for row in case.rows:
            left[row["policy"]] += _left(row)
            jobs[row["policy"]] += row["jobs"]
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


def _left(row: dict[str, Any]) -> int:
    return int(row["jobs"] - row["placed"])


def _played(given: dict[str, Any], found: Sequence[Case]) -> Iterator[tuple[str, list[str]]]:
    rules = given["rules"]
    size = {case.cluster: case.runs[0] for case in found}
    beside = f" and {', '.join(given['adds'])} beside" if given["adds"] else ""
    yield (
        "Cluster" if len(size) == 1 else "Clusters",
        [
            f"{name}{beside}: {wording.several(run['nodes'], 'node')}, "
            f"{wording.several(run['gpus'], 'GPU')}"
            for name, run in size.items()
        ],
    )
    jobs = found[0].runs[0]["jobs"]
    loads = ", ".join(wording.load(load) for load in given["loads"])
    scaled = any(load is not None for load in given["loads"])
    meant = " (GPU time asked / there until the last job has come)" if scaled else ""
    yield "Jobs", [f"{_jobs_of(jobs, given)}; {loads}{meant}"]
    asks = {cluster: _asked(found, cluster) for cluster in size}
    if len(set(asks.values())) == 1:
        yield "Asked, by GPU time", list(next(iter(asks.values())))
    else:
        words = [f"{cluster}: {'; '.join(asked)}" for cluster, asked in asks.items() if asked]
        yield "Asked, by GPU time", words
    rule = "all pods of a job start or none" if rules["gang"] else "pods start one by one"
    yield "Queue", [f"{rules['queue']}; {rule}"]
    every = "all policies play the same jobs under one seed" if len(given["policies"]) > 1 else ""
    yield "Seeds", ["; ".join(filter(None, [wording.seeds(given["seeds"]), every]))]


def _asked(found: Sequence[Case], cluster: str) -> tuple[str, ...]:
    """What was asked on a cluster, as the first run that was noted has it."""
    runs = (run for case in found if case.cluster == cluster for run in case.runs)
    asks: list[dict[str, Any]] = next((run["asks"] for run in runs if run.get("asks")), [])
    whole = sum(ask["gpu_hours"] for ask in asks) or 1.0
    words = []
    for ask in asks[:ASKS]:
        share = wording.percent(ask["gpu_hours"] / whole)
        words.append(f"{share}: {ask['ask']} ({wording.several(ask['jobs'], 'job')})")
    if rest := asks[ASKS:]:
        share = wording.percent(sum(ask["gpu_hours"] for ask in rest) / whole)
        jobs = sum(ask["jobs"] for ask in rest)
        words.append(
            f"{share}: {wording.several(len(rest), 'other kind')} ({wording.several(jobs, 'job')})"
        )
    return tuple(words)


# The table.


@dataclass(frozen=True, slots=True)
class _Shown:
    """A column of figures. ``best`` picks the best mean; None where none is better as such."""

    column: Column
    name: str
    form: str
    unit: float = 1.0
    best: Callable[[Iterable[float]], float] | None = None


def _table(found: Sequence[Case]) -> Table:
    wait, wait_unit = wording.unit(_longest(found, "wait"))
    completion, completion_unit = wording.unit(_longest(found, "completion"))
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
    unplaced = any(_left(row) for case in found for row in case.rows)
    last = [Column("never placed", "jobs")] if unplaced else []
    groups = []
    for case in found:
        best = {one.name: _best(case, one) for one in shown}
        rows = []
        for row in case.rows:
            cells = [
                Cell(text, "best" if text != "–" and _mean(row, one) == best[one.name] else "")
                for one in shown
                for text in [spread(row[one.name], one.form, one.unit)]
            ]
            left = [Cell(f"{_left(row):,}")] if unplaced else []
            rows.append(Row([Cell(row["policy"]), *cells, *left], row["policy"] == OURS))
        groups.append(Group(case.name, rows))
    columns = [Column("policy", figures=False), *(one.column for one in shown), *last]
    return Table(columns, groups, _note(found))


def _longest(found: Sequence[Case], name: str) -> float:
    return max((row[name][0] for case in found for row in case.rows if row[name]), default=0.0)


def _mean(row: dict[str, Any], one: _Shown) -> str | None:
    """As it is written: means that look alike are alike."""
    return None if row[one.name] is None else f"{row[one.name][0] / one.unit:{one.form}}"


def _best(case: Case, one: _Shown) -> str | None:
    """The best mean as it is written; None where all are written alike."""
    rows = [row for row in case.rows if row[one.name] is not None]
    if one.best is None or len({_mean(row, one) for row in rows}) < 2:
        return None
    best = one.best(row[one.name][0] for row in rows)
    return f"{best / one.unit:{one.form}}"


def _note(found: Sequence[Case]) -> str:
    several = any(row["seeds"] > 1 for case in found for row in case.rows)
    spread_ = "Means over seeds ± 95 % (Student’s t). " if several else "One seed, no intervals. "
    return (
        f"{spread_}Marked is the best mean of a column; intervals may overlap. Allocation is not "
        "marked: jobs over slow links hold their GPUs longer, and that counts as allocated. "
        "Promises are those of placed jobs with annotations; the weakest hop is that of jobs with "
        "several GPUs; those asking are jobs with annotations; completion is from arrival to end, "
        "then beside ours seed by seed, of all jobs and of those with several GPUs; fragmented are "
        "free GPUs of no use to the usual requests."
    )


# Figures.


def _figures(found: Sequence[Case], palette: Palette) -> Iterator[Figure]:
    for make in (_promises, _completions, _loads, _waits, _hops):
        figure = make(found, palette)
        if figure.panels:
            yield figure
    yield from _curves(found, palette)
    yield from _maps(found, palette)


def _caption(case: Case, found: Sequence[Case]) -> str:
    return case.name if len(found) > 1 else ""


def _intervals(found: Sequence[Case]) -> str:
    if all(row["seeds"] < 2 for case in found for row in case.rows):
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
        size, unit = wording.unit(_longest(found, "completion"))
        given = {case.name: _dots(case, "completion", size) for case in found}
        axis = plots.Axis(f"completion, {unit}", 0)
    text = f"From arrival to end, left is faster. {_intervals(found)}"
    return Figure("Completion", text, _dotted(given, axis, palette))


def _dots(case: Case, name: str, size: float) -> list[plots.Dot]:
    return [
        plots.Dot(row["policy"], row[name][0] / size, row[name][1] / size)
        for row in case.rows
        if row[name] is not None
    ]


def _dotted(given: dict[str, list[plots.Dot]], axis: plots.Axis, palette: Palette) -> list[Panel]:
    """A panel per case, all on one axis."""
    axis = axis.around([dot for dots in given.values() for dot in dots])
    return [
        Panel(
            name if len(given) > 1 else "",
            plots.dots(dots, axis, palette),
            "; ".join(f"{d.policy} {spread([d.mean, d.half], '.3g')}" for d in dots),
        )
        for name, dots in given.items()
        if dots
    ]


def _loads(found: Sequence[Case], palette: Palette) -> Figure:
    """Promises, waiting and completion against the load, for each cluster with several loads."""
    wait, wait_unit = wording.unit(_longest(found, "wait"))
    completion, completion_unit = wording.unit(_longest(found, "completion"))
    kinds = (
        ("Promises kept", "kept", 0.01, "%"),
        ("Wait", "wait", wait, wait_unit),
        ("Completion", "completion", completion, completion_unit),
    )
    panels = []
    clusters = dict.fromkeys(case.cluster for case in found)
    for cluster in clusters:
        rows = [row for case in found for row in case.rows if case.cluster == cluster]
        for title, name, size, unit in kinds:
            given = list(_against_load(rows, name, size))
            several = len({load for line in given for load in line.x}) > 1
            if several and any(any(line.y) for line in given):
                caption = f"{title}, {cluster}" if len(clusters) > 1 else title
                drawing = plots.against(given, "load", f"{title.lower()}, {unit}", palette)
                panels.append(Panel(caption, drawing, "The means stand in the table."))
    text = "Means over seeds. How far they differ from seed to seed stands in the table."
    return Figure("Against load", text, panels, lined=True)


def _against_load(rows: Sequence[dict[str, Any]], name: str, size: float) -> Iterator[plots.Line]:
    for policy in dict.fromkeys(row["policy"] for row in rows):
        points = sorted(
            (row["load"], row[name][0] / size)
            for row in rows
            if row["policy"] == policy and row["load"] is not None and row[name] is not None
        )
        if points:
            yield plots.Line(policy, [x for x, _ in points], [y for _, y in points])


def _waits(found: Sequence[Case], palette: Palette) -> Figure:
    panels = []
    for case in found:
        given = list(_quantiles(case))
        if any(line.x[-1] >= 1 for line in given):
            drawing = plots.waits(given, palette)
            half = "; ".join(
                f"{line.policy} {wording.duration(line.x[45])} at 90 %" for line in given
            )
            panels.append(Panel(_caption(case, found), drawing, half))
    text = "Share of the placed jobs that had started by then. Quantiles, averaged over seeds."
    return Figure("Waiting", text, panels, lined=True)


def _quantiles(case: Case) -> Iterator[plots.Line]:
    for row in case.rows:
        runs = [r["waits"] for r in case.runs if r["policy"] == row["policy"] and r["waits"]]
        if runs:
            x = [mean(values) for values in zip(*runs, strict=True)]
            yield plots.Line(row["policy"], x, [100 * q for q in QUANTILES])


def _hops(found: Sequence[Case], palette: Palette) -> Figure:
    del palette
    panels, used = [], [False] * len(STEPS)
    for case in found:
        bars = list(_bars(case))
        for one in bars:
            for _, shares in one.shares:
                used = [old or share > 0 for old, share in zip(used, shares, strict=True)]
        if bars:
            panels.append(Panel(_caption(case, found), plots.stacks(bars), _said_of(bars)))
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
        for row in case.rows:
            steps = [0] * len(STEPS)
            for run in case.runs:
                for size, counts in run["hops"].items() if run["policy"] == row["policy"] else ():
                    for hop, count in counts.items() if least < float(size) <= most else ():
                        steps[_step(float(hop))] += count
            if whole := sum(steps):
                shares.append((row["policy"], [n / whole for n in steps]))
        if shares:
            yield plots.Bars(heading, shares)
        least = most


def _step(hop: float) -> int:
    return sum(hop >= edge for edge in HOPS)


def _said_of(given: Sequence[plots.Bars]) -> str:
    wide = _step(50.0)
    return ". ".join(
        f"{bars.heading}, share with 50 GB/s and more: "
        + "; ".join(f"{name} {wording.percent(sum(s[wide:]))}" for name, s in bars.shares)
        for bars in given
    )


def _curves(found: Sequence[Case], palette: Palette) -> Iterator[Figure]:
    kinds = (
        ("Allocation", "allocated", "GPUs held, %", "GPUs held, of all."),
        (
            "Fragmentation",
            "fragmented",
            "of free GPUs, %",
            "Free GPUs that the usual requests could not be promised. No line where none is free.",
        ),
    )
    for title, name, axis, text in kinds:
        panels = []
        for case in found:
            given = [
                plots.Line(
                    run["policy"],
                    [point["arrived"] / 100 for point in run["curve"]],
                    [_at(point, name) for point in run["curve"]],
                )
                for run in case.noted
            ]
            if given:
                x = "GPUs asked for so far / GPUs of the cluster"
                drawing = plots.lines(given, x, axis, palette)
                means = "; ".join(f"{line.policy} {_mean_of(line.y)}" for line in given)
                panels.append(Panel(_caption(case, found), drawing, f"On average {means}"))
        seed = next((run["seed"] for case in found for run in case.noted), None)
        if panels:
            yield Figure(title, f"{text} At arrivals under seed {seed}.", panels, lined=True)


def _at(point: dict[str, Any], name: str) -> float:
    """A point of a curve; what of free GPUs is no use is not known where none is free."""
    nothing_free = name == "fragmented" and point["allocated"] >= 100
    return float("nan") if nothing_free else float(point[name])


def _mean_of(values: Sequence[float]) -> str:
    known = [value for value in values if value == value]
    return f"{mean(known):.0f} %" if known else "–"


def _maps(found: Sequence[Case], palette: Palette) -> Iterator[Figure]:
    """One figure per case; all but the highest load of a cluster are folded."""
    highest: dict[str, float] = {}
    for case in found:
        highest[case.cluster] = max(case.load or 0.0, highest.get(case.cluster, 0.0))
    for case in found:
        noted = [run for run in case.noted if run.get("maps")]
        if not noted:
            continue
        nodes = len(noted[0]["maps"]["nodes"])
        of = noted[0]["nodes"]
        which = "All nodes" if nodes == of else f"{nodes} of {of:,} nodes"
        panels = [
            Panel(
                run["policy"],
                maps.strip(run["maps"], run["policy"], palette),
                f"{nodes} nodes at {len(run['maps']['moments'])} moments",
            )
            for run in noted
        ]
        yield Figure(
            "GPUs held" + (f": {case.name}" if len(found) > 1 else ""),
            f"{which}; a line per GPU, coloured while it is held, time to the right. "
            f"Under seed {noted[0]['seed']}.",
            panels,
            small=True,
            folded=(case.load or 0.0) < highest[case.cluster],
        )
