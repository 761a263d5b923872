"""``python -m benchmarks``."""

import typer

from benchmarks.commands.compare import compare
from benchmarks.commands.promises import kinds, promises, promises_by_kind
from benchmarks.commands.report import report
from benchmarks.commands.simulate import simulate
from benchmarks.commands.speed import dra, following, latency, throughput, worst
from benchmarks.commands.traces import traces
from scheduler_extender.cli.commandline import run
from scheduler_extender.cli.options import spread

app = typer.Typer(
    help="Measure speed and promises, and simulate jobs on clusters.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _commands() -> None:
    """Measure speed and promises, and simulate jobs on clusters."""


for command in (
    latency,
    throughput,
    following,
    promises,
    promises_by_kind,
    kinds,
    compare,
    dra,
    worst,
    simulate,
    report,
    traces,
):
    app.command(command.__name__.replace("_", "-"))(spread(command))


if __name__ == "__main__":
    run(app, "python -m benchmarks")
