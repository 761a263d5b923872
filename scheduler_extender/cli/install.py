"""Changes kube-scheduler's files on a control-plane node, which kubectl cannot apply."""

import hashlib
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer

from scheduler_extender.cli.atomicfile import Change, Files
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import check_namespace, is_dns, is_ip, tell, text_of
from scheduler_extender.cli.options import Asked, Doing
from scheduler_extender.http.certificates import CertificatesError, Tls, check_client
from scheduler_extender.installing import flags, k3s, schedulerconfig, staticpod
from scheduler_extender.installing.yamledit import EditError, same
from scheduler_extender.untrustedtext import sanitized

SECRETS = {"ca.crt": 0o644, "scheduler.crt": 0o644, "scheduler.key": 0o600}
READ_ANEW = {"scheduler.crt", "scheduler.key"}  # kube-scheduler reads these again without a restart
MAX_PEM = 64 * 1024
NO_CONNECTION = (
    "clientConnection.kubeconfig is missing; with this file kube-scheduler ignores --kubeconfig "
    "and finds no API server; add the field"
)
SECOND = (
    "let the chart run a second kube-scheduler instead: --set scheduler.enabled=true "
    "(docs/install/second-scheduler.md)"
)

NEXT = {
    "kubeadm": "The kubelet now restarts kube-scheduler. Check that it runs: kubectl "
    "-n kube-system get pods -l component=kube-scheduler",
    "k3s": "Restart k3s now: systemctl restart k3s",
}


def carry_out(kind: str, asked: Asked, doing: Doing) -> None:
    """Change the files of a node, or show the changes. Raises :class:`BadInputError`."""
    plan = {"kubeadm": _kubeadm, "k3s": _k3s}.get(kind)
    if plan is None:
        raise BadInputError(
            f"KIND: allowed are kubeadm, k3s, not {kind[:60]!r}; elsewhere, {SECOND}"
        )
    if not doing.root.is_dir():
        raise BadInputError(f"--root: {doing.root}: no such folder")
    files = Files(doing.root)
    every = plan(files, None if doing.remove else asked)
    changes = [each for each in every if each.old_text != each.new_text or files.shows(each)]
    for change in changes:
        if doing.dry_run:
            typer.echo(sanitized(change.difference()), nl=False)
            continue
        files.apply(change)
        kept = f" (copy of the old file: {change.copy})" if change.copy else ""
        typer.echo(sanitized(f"{change.path}: {change.kind()}{kept}"))
    if not changes:
        typer.echo("nothing to change")
    elif not doing.dry_run:
        news = {posixpath.basename(change.path) for change in changes} - READ_ANEW
        reads = (
            "no longer reads these files"
            if doing.remove
            else "reads the new files without a restart"
        )
        typer.echo(NEXT[kind] if news else f"kube-scheduler {reads}.")


def _kubeadm(files: Files, asked: Asked | None) -> list[Change]:
    """Return the changes on a node of kubeadm.

    The kubelet acts at once on a change of the static pod. So the static pod comes last, and when
    the extender is removed it comes first.
    """

    text = files.text(staticpod.PATH)
    if text is None:
        raise BadInputError(
            f"{staticpod.PATH} does not exist: kubeadm runs no kube-scheduler here. On RKE2, "
            f"OpenShift, Talos or kops, {SECOND}"
        )
    with _named(staticpod.PATH):
        pod = staticpod.read(text)
        path = pod.config() or staticpod.CONFIG
        settings = flags.settings({"kubeconfig": staticpod.KUBECONFIG} | pod.flags())
    node = _Node(files, asked, staticpod.FOLDER, settings)
    configuration, secrets = node.configuration(path), node.secrets()
    with _named(staticpod.PATH):
        if asked is None:
            kept = path == staticpod.CONFIG and configuration.new_text is not None
            without = staticpod.without_config(pod, keep_folder=kept)
            after = node.as_it_was(staticpod.PATH, text, without)
        else:
            # kube-scheduler reads ca.crt only at its start, so a new one must change the digest.
            parts = f"{configuration.new_text}{secrets[0].new_text}"
            digest = hashlib.sha256(parts.encode()).hexdigest()[:16]
            after = staticpod.with_config(pod, digest)
    foreign = asked is not None and staticpod.DIGEST not in pod.annotations
    change = Change(
        path=staticpod.PATH,
        old_text=text,
        new_text=after,
        copy=node.copy(staticpod.PATH) if foreign else None,
    )
    every = [*secrets, configuration, change]
    return every[::-1] if asked is None else every


def _k3s(files: Files, asked: Asked | None) -> list[Change]:

    if not files.names(posixpath.dirname(k3s.FILE)):
        raise BadInputError(f"{posixpath.dirname(k3s.FILE)} has no files: no k3s server runs here")
    paths = [k3s.FILE, *(name for name in files.names(k3s.FILES) if name.endswith(k3s.READ))]
    texts = {path: text for path in paths if (text := files.text(path)) is not None}
    ours = texts.pop(k3s.OURS, None)
    folders = [f"{folder}/k3s.service.d" for folder in k3s.SERVICES]
    units = [*k3s.UNITS, *(name for folder in folders for name in files.names(folder))]
    try:
        for path in units if asked else []:
            k3s.check_unit(path, files.text(path) or "")
        started = k3s.started_with(texts)
        node = _Node(files, asked, k3s.FOLDER, flags.settings(started))
    except EditError as error:  # its message names the file
        raise BadInputError(str(error)) from error
    theirs = started.get("config")
    configuration = node.configuration(theirs or k3s.CONFIG)
    adds = theirs is None and configuration.new_text is not None
    if adds and k3s.started_with({**texts, k3s.OURS: k3s.TEXT}).get("config") != k3s.CONFIG:
        raise BadInputError(
            f"{k3s.FILES}: the {k3s.KEY} of a later file replaces the one of {k3s.OURS}; "
            f"write {k3s.KEY}+ in the later file"
        )
    change = Change(path=k3s.OURS, old_text=ours, new_text=k3s.TEXT if adds else None)
    every = [*node.secrets(), configuration, change]
    return every[::-1] if asked is None else every


@dataclass(frozen=True, slots=True)
class _Node:
    """The common part for nodes of kubeadm and of k3s. ``asked`` is None to remove the extender."""

    files: Files
    asked: Asked | None
    folder: str
    settings: flags.Settings

    def configuration(self, path: str) -> Change:
        """Return the change of kube-scheduler's configuration. Raises :class:`BadInputError`."""

        ours = posixpath.dirname(path) == self.folder
        before = after = self.files.text(path)
        copy = None
        if before is None and not ours:
            raise BadInputError(f"{path} does not exist, but kube-scheduler is started with it")
        with _named(path):
            if self.asked is not None:
                place = self._place(self.asked)
                after = schedulerconfig.new(place)
                if before is not None:
                    after = schedulerconfig.merged(before, place)
                    foreign = schedulerconfig.without(before) == before
                    if foreign:
                        copy = self.copy(path)
                    elif ours:
                        after = schedulerconfig.with_settings(after, self.settings)
                if not schedulerconfig.knows_api_server(after):
                    tell(f"note: {path}: {NO_CONNECTION}")
            elif before is not None:
                shipped = schedulerconfig.says_nothing_else(before, self.settings)
                without = self.as_it_was(path, before, schedulerconfig.without(before))
                after = None if ours and shipped else without
        return Change(path=path, old_text=before, new_text=after, copy=copy)

    def secrets(self) -> list[Change]:
        """Return the changes of the certificates, after a check that they fit each other.

        Raises :class:`BadInputError`.
        """
        texts: dict[str, str] = {}
        if self.asked is not None:
            if self.asked.tls is None:
                raise BadInputError(
                    "--tls: needed is a folder with ca.crt, scheduler.crt and scheduler.key"
                )
            texts = {name: text_of(self.asked.tls / name, MAX_PEM) for name in SECRETS}
            authority, certificate, key = (self.asked.tls / name for name in SECRETS)
            try:
                check_client(Tls(certificate, key, authority))
            except CertificatesError as error:
                raise BadInputError(f"--tls: {error}") from error
        return [
            Change(
                path=(path := f"{self.folder}/{name}"),
                old_text=self.files.text(path),
                new_text=texts.get(name),
                mode=mode,
                secret=True,
            )
            for name, mode in SECRETS.items()
        ]

    def _place(self, asked: Asked) -> schedulerconfig.Place:
        """Return the addresses and paths of the options. Raises :class:`BadInputError`."""

        address = asked.address or ""  # kubectl prints "None" for a headless Service
        if not is_ip(address) and (not is_dns(address) or "*" in address or address == "None"):
            given = "" if asked.address is None else f", not {address[:60]!r}"
            raise BadInputError(f"--address: an IP address or a DNS name is needed{given}")
        check_namespace("--namespace", asked.namespace)
        return schedulerconfig.Place(address, asked.namespace, self.folder, self.settings)

    def as_it_was(self, path: str, before: str, after: str) -> str:
        """Return the kept copy of a file if its content equals ``after``; otherwise ``after``."""

        kept = self.files.text(self.copy(path))
        return kept if before != after and kept and same(after, kept) else after

    def copy(self, path: str) -> str:
        """Return the path of a file's copy.

        It is in our own folder, because the kubelet reads all files beside a static pod.
        """
        return f"{self.folder}/before{path}"


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Turn a ValueError in the block into a :class:`BadInputError` that names this file."""
    try:
        yield
    except ValueError as error:
        raise BadInputError(f"{path}: {error}") from error
