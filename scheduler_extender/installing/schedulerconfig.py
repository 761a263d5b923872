"""Adds the extender to a new or an existing KubeSchedulerConfiguration, and removes it again.

If the configuration already has an entry of ours, only its address and its files are set. The
operator has chosen its other settings, such as the weight and the resources.
"""

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from scheduler_extender.installing.flags import Settings
from scheduler_extender.installing.yamledit import END, EditError, Step, document, put, take

SHIPPED = Path(__file__).with_name("kube-scheduler-config.yaml")
KIND = "KubeSchedulerConfiguration"
VERSION = "kubescheduler.config.k8s.io/v1"  # the only version that kube-scheduler reads since 1.29
NAME = "gpu-topology"
PORT = 8888
# The files in an entry's ``tlsConfig``, as `gpu-topology certificates` names them.
FILES = {"caFile": "ca.crt", "certFile": "scheduler.crt", "keyFile": "scheduler.key"}


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses and paths in an entry. Paths are those that kube-scheduler itself sees.

    ``address`` is the extender's IP address or name, and ``folder`` has the certificates.
    ``settings`` replace the flags that kube-scheduler ignores once it has a configuration.
    """

    address: str
    namespace: str
    folder: str
    settings: Settings

    def url(self) -> str:
        """Return the URL to which kube-scheduler sends its requests.

        >>> Place("fd00::1", "gpu-topology-system", "/etc/x", []).url()
        'https://[fd00::1]:8888/scheduler'
        """
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"https://{host}:{PORT}/scheduler"

    def tls(self) -> dict[str, str]:
        """Return the entry's ``tlsConfig``."""
        files = {field: f"{self.folder}/{name}" for field, name in FILES.items()}
        return {**files, "serverName": f"{NAME}.{self.namespace}.svc"}


def new(place: Place) -> str:
    """Return the shipped configuration with the addresses and paths of ``place``."""
    return _placed(with_settings(SHIPPED.read_text(), place.settings), 0, place)


def with_settings(text: str, settings: Settings) -> str:
    """Return the configuration with these settings. Raises :class:`EditError`."""
    for path, value in settings:
        text = put(text, path, _plain(value))
    return text


def merged(text: str, place: Place) -> str:
    """Return the configuration with an entry for the extender.

    Raises :class:`EditError` if the text is no such configuration, or if it has another extender
    that kube-scheduler does not accept beside ours.
    """
    entries = _extenders(text)
    version = str(document(text, KIND).get("apiVersion"))
    if version != VERSION:
        raise EditError(
            f"apiVersion: since Kubernetes 1.29 kube-scheduler reads only {VERSION}, not "
            f"{version[:60]!r}; convert the configuration to it first"
        )
    ours = _ours(entries)
    for number, other in enumerate(entries):
        if number != ours:
            _check_beside(other)
    if ours is not None:
        return _placed(text, ours, place)
    entries_shipped = SHIPPED.read_text().partition("\nextenders:\n")[2]
    entry = textwrap.dedent("  " + entries_shipped.partition("- ")[2])
    listed = f"- {textwrap.indent(entry, '  ').strip()}"
    text = put(text, ["extenders", END], entry) if entries else put(text, ["extenders"], listed)
    return _placed(text, len(entries), place)


def knows_api_server(text: str) -> bool:
    """Check whether a configuration names the kubeconfig by which kube-scheduler connects."""
    connection = document(text, KIND).get("clientConnection")
    return isinstance(connection, dict) and bool(connection.get("kubeconfig"))


def without(text: str) -> str:
    """Return the configuration without the extender's entry. Raises :class:`EditError`."""
    ours = _ours(_extenders(text))
    return text if ours is None else take(text, ["extenders", ours])


def says_nothing_else(text: str, settings: Settings) -> bool:
    """Check whether a configuration, apart from our entry, equals the shipped one."""
    shipped = new(Place("", "", "", settings))
    return document(without(text), KIND) == document(take(shipped, ["extenders"]), KIND)


def _placed(text: str, number: int, place: Place) -> str:
    """Return the text with the address and the files of ``place`` in this entry."""
    at: list[Step] = ["extenders", number]
    entry = _extenders(text)[number]
    for field, value in {"urlPrefix": place.url(), "enableHTTPS": True}.items():
        if entry.get(field) != value:
            text = put(text, [*at, field], _plain(value))
    tls = entry.get("tlsConfig")
    if not isinstance(tls, dict):
        return put(text, [*at, "tlsConfig"], _plain(place.tls()))
    for field, value in place.tls().items():
        if tls.get(field) != value:
            text = put(text, [*at, "tlsConfig", field], _plain(value))
    return text


def _plain(value: object) -> str:
    return str(yaml.safe_dump(value, width=10_000)).removesuffix("...\n")


def _extenders(text: str) -> list[dict[str, Any]]:
    found = document(text, KIND)
    said, version = found.get("kind"), str(found.get("apiVersion"))
    if said != KIND or not version.startswith("kubescheduler.config.k8s.io/"):
        raise EditError(f"kind: {KIND} is needed, not {str(said)[:60]!r} of {version[:60]!r}")
    entries = found.get("extenders") or []
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise EditError("extenders: a list of mappings is needed")
    return entries


def _ours(entries: list[dict[str, Any]]) -> int | None:
    """Return the index of our entry, which names our Service or expects its certificate."""
    numbers = [number for number, entry in enumerate(entries) if _is_ours(entry)]
    if len(numbers) > 1:
        raise EditError(f"extenders: {len(numbers)} entries are for gpu-topology; keep one")
    return numbers[0] if numbers else None


def _is_ours(entry: dict[str, Any]) -> bool:
    tls = entry.get("tlsConfig")
    try:
        host = urlsplit(str(entry.get("urlPrefix"))).hostname
    except ValueError:
        host = None
    names = [host, tls.get("serverName") if isinstance(tls, dict) else None]
    return any(str(name).partition(".")[0] == NAME for name in names)


def _check_beside(other: dict[str, Any]) -> None:
    """Raise :class:`EditError` for an extender that kube-scheduler does not accept beside ours."""
    named = f"extenders: {str(other.get('urlPrefix'))[:100]}"
    if other.get("bindVerb"):
        raise EditError(f"{named} binds pods (bindVerb), which only one extender may")
    resources = yaml.safe_load(SHIPPED.read_text())["extenders"][0]["managedResources"]
    ours = {each["name"] for each in resources}
    managed = other.get("managedResources") or []
    for each in managed if isinstance(managed, list) else []:
        if isinstance(each, dict) and each.get("name") in ours:
            raise EditError(f"{named} manages {each['name']}, which only one extender may")
