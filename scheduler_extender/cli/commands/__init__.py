"""The declarations of the commands of ``gpu-topology``: options, help, and simple checks.

``cluster`` has the commands of the kubectl plugin. ``installing`` and ``trying`` have the commands
for the user's own machine, and ``extender`` and ``agent`` the services. The work of a command is in
the package above, and is imported when the command is called. So help, completion and errors in
options load no model.

Exit codes: 0 done, 1 the answer is no, 2 bad input with one clear line on stderr.

The help text of a command describes its arguments, and the list below that text hides them, because
typer always shows the Python type of an argument in this list.
"""

from typing import Annotated

import typer

from scheduler_extender.cli.commands.examples import ends_of_help
from scheduler_extender.cli.lazygroup import PLAIN, lazy_group

# In the order of the help text, with the module of each.
COMMANDS = {
    "extender": "extender",
    "agent": "agent",
    "certificates": "installing",
    "install": "installing",
    "import": "trying",
    "check": "cluster",
    "claim": "cluster",
    "machines": "trying",
    "nodes": "cluster",
    "node": "cluster",
    "map": "cluster",
    "pods": "cluster",
    "waiting": "cluster",
    "idle": "cluster",
    "unblock": "cluster",
    "why": "cluster",
    "audit": "cluster",
    "doctor": "cluster",
    "demo": "trying",
    "play": "trying",
    "completion": "cluster",
}
APP, PLUGIN = "gpu-topology", "kubectl-gpu_topology"
OF = {
    APP: tuple(name for name in COMMANDS if name != "completion"),
    PLUGIN: tuple(name for name, module in COMMANDS.items() if module == "cluster"),
}
FUNCTIONS = {"import": "import_", "map": "map_"}  # commands whose names Python uses itself
# Module and function of each command.
PLACES = {
    app: {
        name: (f"scheduler_extender.cli.commands.{COMMANDS[name]}", FUNCTIONS.get(name, name))
        for name in OF[app]
    }
    for app in OF
}
# The package benchmarks is part of a checkout, and of no wheel or image.
PLACES[APP] |= {name: ("benchmarks.commands.simulate", name) for name in ("simulate", "report")}


def _tell_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        # Only pyproject.toml has the version, so it is read from the package's metadata.
        typer.echo(f"gpu-topology {version('gpu-topology')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Handle the options before a command's name."""


app = typer.Typer(
    name=APP,
    cls=lazy_group(PLACES[APP], ends_of_help("gpu-topology")),
    help="GPU placement on Kubernetes that keeps its word.\n\n"
    "Commands exit with 0 when done, with 1 when the answer is no, and with 2 after an error: "
    "wrong input, missing rights, or no answer from the API server or the extender. Standard error "
    "then has one line with the cause. Commands about a cluster use your own rights, and say what "
    "you may not see.",
    no_args_is_help=True,
    add_completion=True,
    **PLAIN,
)
plugin = typer.Typer(
    name=PLUGIN,
    cls=lazy_group(PLACES[PLUGIN], ends_of_help("kubectl gpu-topology")),
    help="GPU placement on Kubernetes that keeps its word: the commands for users.\n\n"
    "Commands use your own rights, and say what you may not see. They exit with 0 when done, with "
    "1 when the answer is no, and with 2 and one line on standard error after an error.",
    no_args_is_help=True,
    add_completion=False,
    **PLAIN,
)
for each in (app, plugin):
    # The callback gets the app's help text, which its own docstring would otherwise replace.
    each.callback(help=each.info.help)(_options)
