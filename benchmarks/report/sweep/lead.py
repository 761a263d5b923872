"""The result of a sweep in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.figures.schema import Interval
from benchmarks.report import wording
from benchmarks.report.colours import OURS
from benchmarks.report.sweep.cases import Case, Known, known
from benchmarks.simulation.rows import spread


def lead(found: Sequence[Case]) -> Iterator[str]:
    """How ours compares with the others, and how many jobs were never placed."""
    compared = [case for case in found if case.ours is not None and case.others]
    if len(compared) == 1 and len(found) == 1:
        yield from _of_one(compared[0])
    elif compared:
        yield from _of_several(compared)
    else:
        yield from _without_ours(found)
    yield from _unplaced(found)


def _of_one(case: Case) -> Iterator[str]:
    ours = case.ours
    assert ours is not None
    rivals = known(case.others, "kept")
    if ours.kept is not None and rivals:
        most = max(one.mean for one in rivals)
        best = wording.among([one.row.policy for one in rivals if one.mean == most])
        kept, theirs = wording.percent(ours.kept.mean), wording.percent(most)
        rest = (
            f", and so did {best}"
            if kept == theirs
            else f"; of the others, {best} kept most: {theirs}"
        )
        yield f"{OURS} kept {kept} of the promises to the jobs it placed{rest}."
    fastest = _fastest(case)
    if fastest is not None and ours.completion is not None:
        yield (
            f"From arrival to end a job took {wording.duration(ours.completion.mean)} under "
            f"{OURS}, and {spread(fastest.value, '.3f')} times as long under "
            f"{fastest.row.policy}, the fastest of the others{_remark(fastest)}."
        )


def _fastest(case: Case) -> Known | None:
    """The fastest other policy, with its completion beside ours."""
    rivals = known(case.others, "completion_against_ours")
    return min(rivals, key=lambda one: one.mean, default=None)


def _told(ratio: Interval, seeds: int) -> str:
    """What the seeds say of a ratio to ours: ``longer``, ``shorter`` or nothing."""
    if seeds < 2 or abs(ratio.mean - 1) <= ratio.half:
        return ""
    return "longer" if ratio.mean > 1 else "shorter"


def _remark(fastest: Known) -> str:
    if fastest.row.seeds < 2:
        return " (one seed: no interval)"
    told = _told(fastest.value, fastest.row.seeds)
    return "" if told else " (no difference that the seeds can tell)"


def _of_several(found: Sequence[Case]) -> Iterator[str]:
    yield from _kept_in_several(found)
    fastest = [one for one in map(_fastest, found) if one is not None]
    if fastest:
        told = Counter(_told(one.value, one.row.seeds) for one in fastest)
        counts = (
            f"longer than under ours in {told['longer']}, shorter in {told['shorter']}, not told "
            f"apart by the seeds in {told['']}"
        )
        one_seed = all(one.row.seeds < 2 for one in fastest)
        yield (
            f"From arrival to end a job took {wording.span([r.mean for r in fastest], '.3f')} "
            "times as long under the fastest other policy of each case"
            f"{' (one seed: no intervals)' if one_seed else f': {counts}'}."
        )


def _kept_in_several(found: Sequence[Case]) -> Iterator[str]:
    """Promises kept, case by case: ours beside the best other policy."""
    asked = []
    for case in found:
        rivals = known(case.others, "kept")
        if case.ours is not None and case.ours.kept is not None and rivals:
            asked.append((case.ours.kept.mean, max(one.mean for one in rivals)))
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


def _without_ours(found: Sequence[Case]) -> Iterator[str]:
    for case in found:
        rows = known(case.rows, "completion")
        if rows:
            fastest = min(rows, key=lambda one: one.mean)
            yield (
                f"{case.name}: a job took least from arrival to end under {fastest.row.policy}, "
                f"{wording.duration(fastest.mean)}."
            )


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
