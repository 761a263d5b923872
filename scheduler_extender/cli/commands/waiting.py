"""``gpu-topology waiting``: the pods that wait for GPUs, and in one line each why."""

from __future__ import annotations

from scheduler_extender.cli.inputs import weakest
from scheduler_extender.cli.options import (
    OutputOption,
    RequireOption,
    WatchOption,
    Where,
    Whose,
    form_of,
)


def waiting(
    output: OutputOption = "table",
    *,
    whose: Whose,
    watch: WatchOption = False,
    require: RequireOption = "expected",
    where: Where,
) -> None:
    """List the pods that wait for GPUs, and why, in one line each.

    The reason counts the nodes by what they answer; why POD says more about one pod. The command
    needs the rights to list pods, nodes and gputopologies, and says what it may not see. Exits with
    1 if a listed pod waits that no node would take.
    """
    form, least = form_of(output), weakest(require)
    from scheduler_extender.cli.source import answer_from
    from scheduler_extender.cli.waiting import told

    answer_from(
        where,
        lambda look: told(look, whose),
        form,
        watch=watch,
        namespace=whose.namespace,
        require=least,
    )
