"""``gpu-topology doctor``: whether what is installed works together, and what to do where not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.inputs import one_of
from scheduler_extender.cli.kubeconfig import Access
from scheduler_extender.cli.options import SYSTEM, Form, SystemOption, TextOption


def doctor(
    scheduler_config: Annotated[
        list[Path] | None,
        typer.Option(
            "--scheduler-config",
            metavar="FILE",
            help="kube-scheduler's configuration, where it is a file of a control-plane node; - is "
            "standard input. If the certificates that it names are here, too, the extender is "
            "asked as kube-scheduler asks it. May be given several times.",
        ),
    ] = None,
    output: TextOption = "text",
    system: SystemOption = SYSTEM,
    forward: Annotated[
        bool,
        typer.Option(
            "--forward",
            help="Ask the extender, too, over kubectl port-forward: it knows what kube-scheduler "
            "has asked.",
        ),
    ] = False,
    *,
    access: Access,
) -> None:
    """Check what is installed, and say what to do.

    It looks at kube-scheduler's configuration, certificates, replicas, agents, kubelets, NVIDIA's
    plugin, policies and clocks, with your own rights, and changes nothing. What you may not see is
    said. Exits with 1 if something fails.
    """
    form = one_of("--output", output, {"text": Form.TABLE, "json": Form.JSON})
    from scheduler_extender.cli.doctor import examine

    examine(scheduler_config or (), system, access, form, forward=forward)
