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
            help="Renew: sign with ca.crt and ca.key of this folder. Default: a new CA.",
        ),
    ] = None,
    *,
    names: Names,
    days: Annotated[
        int,
        typer.Option(metavar="NUMBER", help="Validity of the two certificates.", min=1, max=3650),
    ] = 365,
    printed: Secrets,
) -> None:
    """Make the certificates for kube-scheduler and the extender.

    Keep ca.key secret: with it anyone can make a certificate for a scheduler.

    The command writes a CA (ca.crt, ca.key), the extender's certificate (extender.crt,
    extender.key) and kube-scheduler's (scheduler.crt, scheduler.key). To renew the certificates,
    run it again with the same folder as --output and --ca. The extender and kube-scheduler load
    changed certificates without a restart.
    """
    from scheduler_extender.cli.certificates import make

    make(output, ca, names, days, printed)


def install(
    kind: Annotated[str, typer.Argument(metavar="KIND", hidden=True)],  # the help text describes it
    *,
    asked: Asked,
    doing: Doing,
) -> None:
    """Connect the kube-scheduler of this node to the extender.

    KIND is kubeadm or k3s. Run it as root on every control-plane node, and again after a change of
    address or certificates.

    The command copies the certificates, and writes kube-scheduler's configuration or adds the
    extender to the existing one. On kubeadm it edits the static pod; on k3s it adds a file to k3s'
    configuration. Other content is kept, and a file that it has not made is copied first.
    """
    from scheduler_extender.cli.install import carry_out

    carry_out(kind, asked, doing)
