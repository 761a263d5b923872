"""``python -m benchmarks``."""

import typer

from scheduler_extender.cli.commandline import run
from scheduler_extender.cli.lazygroup import PLAIN, lazy_group

# The commands in the order of the help text, with the module of each.
COMMANDS = {
    "latency": "speed",
    "throughput": "speed",
    "following": "speed",
    "promises": "promises",
    "compare": "compare",
    "dra": "speed",
    "worst": "speed",
    "simulate": "simulate",
    "report": "simulate",
}
PLACES = {name: (f"benchmarks.commands.{module}", name) for name, module in COMMANDS.items()}

app = typer.Typer(
    cls=lazy_group(PLACES),
    help="Measure speed and promises, and simulate jobs on clusters.",
    no_args_is_help=True,
    add_completion=False,
    **PLAIN,
)


@app.callback()
def _commands() -> None:
    """Measure speed and promises, and simulate jobs on clusters."""


if __name__ == "__main__":
    run(app, "python -m benchmarks")
