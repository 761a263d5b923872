"""Runs a typer app so that wrong input gives one clear line on stderr and exit code 2."""

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer

from scheduler_extender.cli.interrupts import CODE
from scheduler_extender.untrustedtext import one_line

MAX_LINE = 1000  # characters of an error

# typer contains its own copy of click and makes only this class of it public.
_UsageError: Any = typer.BadParameter.__mro__[1]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)  # the output cannot be written
OURS = ("scheduler_extender", "topology", "")


LACKING = {
    **dict.fromkeys(
        ("benchmarks", "scipy"),
        "simulate and report need a checkout of the source: run make dev there, and then "
        ".venv/bin/gpu-topology",
    ),
    "networkx": "-o graphml needs a package: pip install networkx",
}


def lacks(package: str) -> str:
    """Return the error about a missing package. Each of our two images lacks some packages."""
    return LACKING.get(package) or (
        f"the package {package} is not installed: pip install '.[agent]' for the agent, or "
        "'.[extender]' for every other command; each image has only one of the two"
    )


class BadInputError(Exception):
    """The user's input cannot be used. The message is the one line that the user sees."""


def run(app: typer.Typer, name: str) -> NoReturn:
    """Run ``app`` and end the process. ``name`` is the command by which people start it."""
    command = typer.main.get_command(app)
    _ready_for_any_output()
    output = sys.stdout
    try:
        code = command.main(prog_name=name, standalone_mode=False)
        sys.stdout.flush()
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
        sys.exit(CODE)
    except BrokenPipeError:
        _no_more_output()
        sys.exit(0)
    except SystemExit as end:
        # If the reader of a pipe is gone, typer replaces the output and exits with 1. Exit code 1
        # would mean that the command's answer is no.
        sys.exit(end.code if sys.stdout is output else 0)
    except OSError as error:
        if error.errno not in FULL:
            raise
        _no_more_output()
        _fail(f"the answer cannot be written: {error.strerror}")
    sys.exit(code if isinstance(code, int) else 0)


def _ready_for_any_output() -> None:
    """Make standard output accept any text.

    A character that its encoding lacks becomes a question mark. If there is no standard output,
    /dev/null takes its place.
    """
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _no_more_output() -> None:
    """Discard the buffer of standard output, which Python would otherwise try to write at exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> NoReturn:
    line = one_line(" ".join(message.split()))
    line = line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} …"
    typer.echo(f"error: {line}", err=True)
    sys.exit(2)
