"""The declarations of the commands that connect kube-scheduler to the extender."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.options import Asked, Doing, Names, Secrets


def certificates(
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the certificates and keys.")
    ],
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            metavar="FOLDER",
            help="Renew: sign with ca.crt and ca.key of this folder, which an earlier run made. "
            "Without it: make a new authority.",
        ),
    ] = None,
    *,
    names: Names,
    days: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", help="Days that the two certificates are valid.", min=1, max=3650
        ),
    ] = 365,
    printed: Secrets,
) -> None:
    """Make what TLS between kube-scheduler and the extender needs.

    These are a certificate authority (ca.crt, ca.key), the certificate that the extender serves
    with (extender.crt, extender.key) and the one that kube-scheduler shows (scheduler.crt,
    scheduler.key). Keep ca.key to yourself: who has it can make a scheduler's certificate. To
    renew the two certificates, run the command again with the same folder as --output and --ca.
    The extender and kube-scheduler read changed certificates by themselves, without a restart.
    """
    from scheduler_extender.cli.certificates import make

    make(output, ca, names, days, printed)


def install(
    kind: Annotated[str, typer.Argument(metavar="KIND", hidden=True)],  # the help text describes it
    *,
    asked: Asked,
    doing: Doing,
) -> None:
    """Tell the kube-scheduler of this node to ask the extender.

    KIND is kubeadm or k3s. The command copies the certificates, and writes kube-scheduler's
    configuration or adds the extender to the one that is there. On kubeadm it edits the static pod,
    on k3s it adds a file to k3s' configuration. What else is in these files stays. A file that it
    has not made is copied first. Run it as root on every control-plane node, and again when the
    address or the certificates change.
    """
    from scheduler_extender.cli.install import carry_out

    carry_out(kind, asked, doing)
