"""Runs a typer app so that wrong input is one clear line on stderr and exit code 2."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer

MAX_LINE = 1000
"""Characters of an error."""

# typer brings its own click and shows of it only this class.
_UsageError: Any = typer.BadParameter.__mro__[1]


OURS = ("scheduler_extender", "topology", "")


def lacks(package: str) -> str:
    """What is said of a package that is not installed, as in the other image of the two."""
    return (
        f"the package {package} is not installed: the agent's image and the extender's hold the "
        "packages of their own command (pip install gpu-topology installs all of them)"
    )


class BadInputError(Exception):
    """What the user gave cannot be used; the message is the one line they see."""


def run(app: typer.Typer, name: str) -> NoReturn:
    """Run ``app`` as the process; ``name`` is what people type to start it."""
    command = typer.main.get_command(app)
    try:
        code = command.main(prog_name=name, standalone_mode=False)
    except BadInputError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OURS:
            raise
        _fail(lacks(package))
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)
            sys.exit(2)
        context = getattr(error, "ctx", None)
        where = context.command_path if context else name
        _fail(f"{where}: {error.format_message()} (try {where} --help)")
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    line = " ".join(message.split())
    line = line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} …"
    typer.echo(f"error: {line}", err=True)
    sys.exit(2)
