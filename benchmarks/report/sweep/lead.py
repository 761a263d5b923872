"""The result of a sweep in sentences."""

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.figures.schema import Interval
from benchmarks.report import wording
from benchmarks.report.colours import OURS
from benchmarks.report.sweep.cases import Case, known


def lead(found: Sequence[Case]) -> Iterator[str]:
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
