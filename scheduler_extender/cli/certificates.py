"""Makes a private certificate authority, and the certificates that it signs."""

from datetime import UTC, datetime
from pathlib import Path

import typer
import yaml

from scheduler_extender.certificateauthority import (
    MAX_COMMON_NAME,
    NAME,
    Authority,
    AuthorityError,
    Use,
)
from scheduler_extender.cli import atomicfile
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import check_namespace, folder, is_dns, is_ip, tell, text_of
from scheduler_extender.cli.kubeconfig import Access, asking
from scheduler_extender.cli.options import SCHEDULER_SECRET, SECRET, Names, Secrets
from scheduler_extender.kube.tlssecrets import AUTHORITY, TlsSecrets, secret
from topology.kubeapi.apiserver import ApiFailure

# The names of two pairs of files in the folder, NAME.crt and NAME.key. The authority's files are
# beside them.
EXTENDER, SCHEDULER = "extender", "scheduler"
# The name of the Service by which kube-scheduler calls the extender.
SERVICE = "gpu-topology"
MAX_PEM = 64 * 1024


def make(output: Path, ca: Path | None, names: Names, days: int, printed: Secrets) -> None:
    """Write the files into a folder, and print the Secrets. Raises :class:`BadInputError`."""
    now = datetime.now(UTC).replace(microsecond=0)
    of_extender, of_scheduler = _of_extender(names), _of_scheduler(names)
    authority = _authority(ca, output, now)
    pairs = {
        EXTENDER: authority.issue(SERVICE, Use.SERVER, of_extender, now, days),
        SCHEDULER: authority.issue(names.client_name, Use.CLIENT, of_scheduler, now, days),
    }
    folder("--output", output, 0o700)
    if ca is None:
        _write(output / "ca.key", authority.key, 0o600)
    _write(output / "ca.crt", authority.certificate, 0o644)
    for which, issued in pairs.items():
        _write(output / f"{which}.key", issued.key, 0o600)
        _write(output / f"{which}.crt", issued.certificate, 0o644)
    # On stderr, because the Secrets may be on stdout.
    expires = pairs[EXTENDER].expires
    tell(
        f"{output}: the authority is valid until {authority.expires:%Y-%m-%d}, the certificates of "
        f"the extender and of kube-scheduler until {expires:%Y-%m-%d}"
    )
    if (expires - now).days < days:
        tell(
            f"warning: the certificates are valid for less than {days} days, because they cannot "
            "outlive the authority; make a new authority soon"
        )
    wanted = [(SECRET, EXTENDER)] if printed.secret else []
    wanted += [(SCHEDULER_SECRET, SCHEDULER)] if printed.scheduler_secret else []
    made = [secret(name, names.namespace, pairs[which], authority) for name, which in wanted]
    typer.echo("---\n".join(str(yaml.safe_dump(each, sort_keys=False)) for each in made), nl=False)


def keep_in_cluster(access: Access, names: Names, days: int) -> None:
    """Create the Secrets in the cluster, or renew their certificates if they are due.

    Secrets that this command has not made are left as they are. Raises :class:`BadInputError`.
    """
    subjects = {
        SECRET: (SERVICE, Use.SERVER, _of_extender(names)),
        SCHEDULER_SECRET: (names.client_name, Use.CLIENT, _of_scheduler(names)),
    }
    with asking(access) as (api, _):
        secrets = TlsSecrets(api, names.namespace)
        try:
            authority = secrets.authority()
            missing = secrets.missing(subjects, authority)
            if authority is None:
                if not missing:
                    typer.echo(
                        f"The Secrets were made without the Secret {AUTHORITY}, and stay as they "
                        "are: renew them as they were made"
                    )
                    return
                authority = Authority.new(NAME, secrets.now())
                secrets.create(AUTHORITY, authority, authority)
                typer.echo(f"Secret {AUTHORITY}: created")
            for name in missing:
                secrets.create(
                    name, authority.issue(*subjects[name], secrets.now(), days), authority
                )
                typer.echo(f"Secret {name}: created")
            for name in filter(secrets.renew, subjects):
                typer.echo(f"Secret {name}: renewed")
        except (ApiFailure, AuthorityError) as error:
            raise BadInputError(f"Secrets of {names.namespace}: {error}") from error


def _of_extender(names: Names) -> list[str]:
    """Return the names in the extender's certificate: its Service, this machine, and ``--name``."""
    check_namespace("--namespace", names.namespace)
    host = f"{SERVICE}.{names.namespace}"
    found = [SERVICE, host, f"{host}.svc", f"{host}.svc.cluster.local"]
    found += ["localhost", "127.0.0.1", "::1", *(names.name or ())]
    for name in names.name or ():
        if not is_ip(name) and not is_dns(name):
            raise BadInputError(f"--name: {name[:60]!r} is neither a DNS name nor an IP address")
    return list(dict.fromkeys(found))


def _of_scheduler(names: Names) -> list[str]:
    """Return the client's name as the only DNS name if it is a valid one, otherwise no name."""
    name = names.client_name
    if not 0 < len(name) <= MAX_COMMON_NAME or not name.isprintable() or not name.isascii():
        raise BadInputError(
            f"--client-name: allowed are 1 to {MAX_COMMON_NAME} printable ASCII characters, not "
            f"{name[:60]!r}"
        )
    return [name] if is_dns(name) else []


def _authority(ca: Path | None, output: Path, now: datetime) -> Authority:
    """Return the authority of the folder ``ca``, or a new one.

    A new authority never replaces an existing one in ``output``.
    """
    if ca is None and (output / "ca.crt").exists():
        raise BadInputError(
            f"--output: {output}/ca.crt exists already; renew its certificates with --ca {output}, "
            "or give another folder for a new authority"
        )
    if ca is None:
        # A run that was killed before it wrote the certificate leaves a key alone.
        path = output / "ca.key"
        kept = text_of(path, MAX_PEM).encode() if path.exists() else None
        try:
            return Authority.new(NAME, now, kept)
        except AuthorityError as error:
            raise BadInputError(f"--output: {path}: {error}") from error
    certificate, key = text_of(ca / "ca.crt", MAX_PEM), text_of(ca / "ca.key", MAX_PEM)
    try:
        return Authority.load(certificate.encode(), key.encode(), now)
    except AuthorityError as error:
        raise BadInputError(f"--ca: {ca}/ca.crt and ca.key: {error}") from error


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        atomicfile.write(path, content, mode)
    except OSError as error:
        raise BadInputError(f"--output: {path}: {error.strerror}") from error
