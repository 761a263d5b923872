"""``python -m benchmarks compare``."""

from typing import Annotated

import typer

from benchmarks.commands.options import JsonFile, one_of


def compare(
    workload: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Workload of the openb trace. Repeatable.  [default: default]",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="COUNT", help="In how many of the published orders jobs come.", min=1, max=5
        ),
    ] = 5,
    json_file: JsonFile = None,
) -> None:
    """Repeat the FGD paper's experiments beside its figures.

    The nodes are modelled as in the paper (fragmentation gradient descent, USENIX ATC 2023). The
    table shows the published figures, ours and the difference, for FGD and for the formula of our
    scores (guaranteed capacity).
    """
    from benchmarks.output import preamble, show, writable, write_json
    from benchmarks.papers import comparison, openb
    from benchmarks.traces import TraceMissingError

    writable(json=json_file)
    words = [one_of("--workload", word, openb.WORKLOADS) for word in workload or ["default"]]
    workloads, orders = list(dict.fromkeys(words)), openb.SEEDS[:seeds]
    try:
        rows = comparison.compare(workloads, orders)
    except TraceMissingError as error:
        raise typer.BadParameter(str(error)) from error
    show(comparison.table(rows), keys=2)
    given = preamble("compare", workloads=workloads, seeds=list(orders))
    write_json(json_file, given | {"rows": rows})
