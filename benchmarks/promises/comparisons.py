"""Are promises kept, and what does keeping them cost?

The same jobs on the same emulated nodes under the extender, with what goes wrong every day; the
same with what goes wrong now and then besides (:data:`~benchmarks.promises.faults.RARE_FAULTS`);
and the rule "a good set is free" in its place.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from benchmarks.output import table_of
from benchmarks.promises.faults import RARE_FAULTS
from benchmarks.promises.fleets import MIXED
from benchmarks.promises.plays import Play, play_all
from benchmarks.promises.tally import Tally

MOST_REASONS = 12
# What stands in files under another name.
NAMES = {"sickened": "gpus_sickened"}


def promises(pods: int, seed: int) -> dict[str, Any]:
    """The figures, with every parameter."""
    restarts = max(1, pods // 2000)
    plays = {
        "extender": Play("extender", pods, seed, restarts=restarts),
        "extender, more faults": Play(
            "extender", pods, seed, restarts=restarts, faults=RARE_FAULTS
        ),
        "good set free": Play("good set free", pods, seed),
    }
    rows = dict(zip(plays, map(_row, play_all(plays.values())), strict=True))
    return {"pods": pods, "seed": seed, "fleet": dict(MIXED), "policies": rows}


# What a file says of each play.
WRITTEN = (
    *("placed", "required", "required_placed", "promised", "broken", "excused", "unreported"),
    *("kubelet_refusals", "unreported_refusals", "refused_by_bind", "gave_up", "unexcused"),
    *("stale", "blind", "faults", "forced", "late_commits", "blindings", "deaths", "recreated"),
    *("foreign", "restarts", "kubelet_restarts", "sickened", "reasons"),
)


def _row(tally: Tally) -> dict[str, Any]:
    row = {name: getattr(tally, name) for name in WRITTEN}
    row["faults"] = len(tally.faults)
    row["reasons"] = dict(tally.reasons.most_common(MOST_REASONS))
    return {NAMES.get(name, name): value for name, value in row.items()}


def promises_table(found: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    title = f"{found['pods']} pods on {sum(found['fleet'].values())} nodes"
    kept = ("placed", "with links required", "promises")
    broken = ("broken", "excused", "unreported", "refused")
    table = table_of(("who chooses nodes",), (*kept, *broken), title)
    for name, row in found["policies"].items():
        table.add_row(
            name,
            f"{row['placed']}",
            f"{row['required_placed']} of {row['required']}",
            *(
                _counts(row[what])
                for what in ("promised", "broken", "excused", "unreported", "kubelet_refusals")
            ),
        )
    return table


def reasons_table(found: dict[str, Any]) -> Table:
    """Why the extender let pods wait."""
    table = table_of(("why the extender let a pod wait",), ("tries",))
    for reason, count in Counter(found["policies"]["extender"]["reasons"]).most_common():
        table.add_row(reason, str(count))
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "0"
