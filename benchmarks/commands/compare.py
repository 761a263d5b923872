"""``python -m benchmarks compare``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.commands.options import JsonFile, one_of

if TYPE_CHECKING:
    from benchmarks.figures.compared import Compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiments:
    """Which experiments are repeated."""

    workload: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Workload of the openb trace. May be given several times.  [default: default]",
        ),
    ] = None
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Policy: Random, DotProd, GpuClustering, GpuPacking, BestFit, FGD, Worth, Damage, "
            "or path/to/file.py:FUNCTION for one of your own. May be given several times.  "
            "[default: all but your own]",
        ),
    ] = None
    seeds: Annotated[
        int,
        typer.Option(
            metavar="COUNT", help="In how many of the published orders jobs come.", min=1, max=5
        ),
    ] = 5
    bound: Annotated[
        bool,
        typer.Option(
            help="Work out, too, what no policy could exceed: 3 to 35 s of CPU for each order."
        ),
    ] = True

    def compared(self) -> Compared:
        """What has come of them. Raises :class:`typer.BadParameter`."""
        from benchmarks.ownpolicy import UnknownPolicyError, find_policy
        from benchmarks.papers import comparison, openb
        from benchmarks.papers.policies import POLICIES

        workloads = [
            one_of("--workload", word, openb.WORKLOADS) for word in self.workload or ["default"]
        ]
        policies = list(dict.fromkeys(self.policy or POLICIES))
        try:
            for name in policies:
                find_policy(name, POLICIES)
            openb.shared()
        except (UnknownPolicyError, openb.TraceMissingError) as error:
            raise typer.BadParameter(str(error)) from error
        return comparison.compare(workloads, policies, openb.SEEDS[: self.seeds], self.bound)


def compare(
    *,
    experiments: Experiments,
    per_seed: Annotated[
        bool, typer.Option("--per-seed", help="Print a row for each order, not the means.")
    ] = False,
    json_file: JsonFile = None,
    tsv_file: Annotated[
        Path | None,
        typer.Option(
            "--tsv", metavar="FILE", help="Write every experiment there, separated by tabs."
        ),
    ] = None,
) -> None:
    """Repeat the FGD paper's experiments beside its figures.

    The nodes are modelled as in the paper (fragmentation gradient descent, USENIX ATC 2023). The
    table shows the published figures, ours and the difference.
    """
    from benchmarks.output import show, writable, write_json, write_text
    from benchmarks.papers import comparison

    writable(json=json_file, tsv=tsv_file)
    found = experiments.compared()
    show((comparison.table_by_seed if per_seed else comparison.table)(found), keys=3)
    write_json(json_file, found.as_json())
    write_text(tsv_file, comparison.tsv(found))
