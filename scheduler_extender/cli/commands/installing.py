"""The declarations of the commands that connect kube-scheduler to the extender."""

from pathlib import Path
from typing import Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.kubeconfig import Access
from scheduler_extender.cli.options import Asked, Doing, Names, Secrets


def certificates(
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for the certificates and keys.")
    ] = None,
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
    access: Access,
) -> None:
    """Make the certificates for kube-scheduler and the extender.

    Keep ca.key secret: with it anyone can make a certificate for a scheduler.

    With --output, it writes a CA (ca.crt, ca.key), the extender's certificate (extender.crt,
    extender.key) and kube-scheduler's (scheduler.crt, scheduler.key). To renew the certificates,
    run it again with the same folder as --output and --ca. With --keep, it creates the Secrets
    that are missing in the cluster, and renews certificates with less than a third of their
    validity left. The extender and kube-scheduler load changed certificates without a restart.
    """
    if printed.keep == (output is not None):
        raise BadInputError("give either --output FOLDER or --keep")
    from scheduler_extender.cli.certificates import keep_in_cluster, make

    if output is not None:
        make(output, ca, names, days, printed)
        return
    if ca or printed.secret or printed.scheduler_secret:
        raise BadInputError("--ca, --secret and --scheduler-secret need --output")
    keep_in_cluster(access, names, days)


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
