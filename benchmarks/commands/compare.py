"""``python -m benchmarks compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.options import JsonFile, one_of
from benchmarks.output import show, writable, write_json, write_text
from benchmarks.ownpolicy import UnknownPolicyError, find_policy
from benchmarks.protocol import comparison, openb
from benchmarks.protocol.policies import POLICIES


def compare(
    workload: Annotated[
        list[str] | None, typer.Option(help="Workloads of the openb trace; repeatable.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(POLICIES)}, or path/to/file.py:FUNCTION; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many of the shared orders.", min=1, max=5)] = 5,
    bound: Annotated[
        bool,
        typer.Option(help="Also what no policy could exceed: 3 to 35 s of CPU per order."),
    ] = True,
    per_seed: Annotated[
        bool, typer.Option("--per-seed", help="Print a row per order instead of the means.")
    ] = False,
    json_file: JsonFile = None,
    tsv_file: Annotated[
        Path | None, typer.Option("--tsv", help="Write every experiment there, too.")
    ] = None,
) -> None:
    """FGD's paper again: published figures, ours and the difference (node model of the paper)."""
    writable(json=json_file, tsv=tsv_file)
    workloads = [one_of("--workload", word, openb.WORKLOADS) for word in workload or ["default"]]
    policies = list(dict.fromkeys(policy or POLICIES))
    try:
        for name in policies:
            find_policy(name, POLICIES)
        openb.shared()
    except (UnknownPolicyError, openb.TraceMissingError) as error:
        raise typer.BadParameter(str(error)) from error
    found = comparison.compare(workloads, policies, openb.SEEDS[:seeds], bound)
    show((comparison.table_by_seed if per_seed else comparison.table)(found), keys=3)
    write_json(json_file, found)
    write_text(tsv_file, comparison.tsv(found))
