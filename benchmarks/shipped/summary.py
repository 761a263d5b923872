"""A simulation's outcomes as figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.shipped.observe import Observer
from benchmarks.shipped.simulation import Outcome, Result

QUANTILES = tuple(q / 50 for q in range(51))


def figures(result: Result, observer: Observer, gpus: float, held: float) -> dict[str, Any]:
    """JSON-ready figures of one simulation on so many GPUs, some of them held all the time.

    ``kept`` is the share of the placed jobs with annotations whose GPUs satisfy them. ``hop`` is
    the mean weakest hop of jobs with more than one GPU, in GB/s; ``hops`` counts them by hop and
    GPUs of a job. Times are in seconds; ``waits`` are quantiles, 0 to 1 in steps of 0.02.
    ``allocated`` is the share of GPU time given out until the last arrival, ``fragmented`` the mean
    over arrivals.
    """
    placed = [o for o in result.outcomes if o.placed]
    asking = [o for o in placed if o.kept is not None]
    several = [o for o in placed if o.hop]
    last = result.outcomes[-1].job.arrives
    waits = [o.waited for o in placed]
    return {
        "jobs": len(result.outcomes),
        "placed": len(placed),
        "impossible": result.impossible,
        "stuck": result.stuck,
        "asking": len(asking),
        "kept": mean(bool(o.kept) for o in asking) if asking else None,
        "hop": mean(o.hop for o in several) if several else None,
        "hop_least_tenth": float(np.quantile([o.hop for o in several], 0.1)) if several else None,
        "hops": _hops(several),
        "wait": mean(waits) if waits else None,
        "wait_asking": mean(o.waited for o in asking) if asking else None,
        "waits": [round(float(w), 1) for w in np.quantile(waits, QUANTILES)] if waits else [],
        "completion": mean(o.completion for o in placed) if placed else None,
        "completion_several": mean(o.completion for o in several) if several else None,
        "allocated": 100 * (held * last + _held(placed, last)) / (gpus * last) if last else None,
        "fragmented": mean(c["fragmented"] for c in observer.curve) if observer.curve else None,
        "ended": result.ended,
        "reasons": dict(result.reasons.most_common(8)),
        "refused_by_kubelet": dict(result.refused),
    }


def _held(placed: Sequence[Outcome], last: float) -> float:
    """GPU seconds held until ``last``."""
    return sum(o.gpus * (min(o.ended, last) - o.started) for o in placed if o.started < last)


def _hops(several: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for o in several:
        found[f"{o.job.gpus:g}"][f"{o.hop:g}"] += 1
    return {size: dict(counts) for size, counts in sorted(found.items(), key=lambda i: float(i[0]))}
