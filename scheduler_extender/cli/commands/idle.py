"""``gpu-topology idle``: who holds GPUs without using them, and whom their release would help."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import weakest
from scheduler_extender.cli.options import (
    OutputOption,
    RequireOption,
    WatchOption,
    Where,
    Whose,
    form_of,
)

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,6})(s|m|min|h|d)")


def idle(
    output: OutputOption = "table",
    *,
    whose: Whose,
    longer_than: Annotated[
        str | None,
        typer.Option(
            "--longer-than",
            metavar="TIME",
            help="Only who has been idle for longer, such as 30m, 2h or 1d.",
        ),
    ] = None,
    watch: WatchOption = False,
    require: RequireOption = "expected",
    where: Where,
) -> None:
    """List the pods that hold GPUs without using them.

    A pod is listed once no GPU of one of its containers has been used for ten minutes; the agents
    of the nodes watch that. "Its end lets in" are waiting pods that no node takes now and that the
    node would take if the idle pod had ended. The command needs the rights to list pods, nodes and
    gputopologies, and says what it may not see.
    """
    form = form_of(output)
    shortest = 0.0 if longer_than is None else seconds_in(longer_than)
    least = weakest(require)
    from scheduler_extender.cli.idle import told
    from scheduler_extender.cli.source import answer_from

    answer_from(
        where,
        lambda look: told(look, whose, shortest),
        form,
        watch=watch,
        namespace=whose.namespace,
        require=least,
    )


def seconds_in(text: str) -> float:
    """A duration such as ``30m``. Raises :class:`BadInputError`.

    >>> seconds_in("90s"), seconds_in("2h")
    (90.0, 7200.0)
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadInputError(
            f"--longer-than: allowed is a whole number with s, m, h or d, such as 30m, not "
            f"{text[:40]!r}"
        )
    return float(int(found[1]) * UNITS[found[2]])
