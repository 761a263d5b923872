"""The rules for the extender's entry in kube-scheduler's configuration."""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from scheduler_extender.doctor.findings import Finding, fail, ok, warn
from scheduler_extender.doctor.observations import Json, at
from scheduler_extender.explain.wording import listed
from topology.yamltext import YamlTextError, documents

KIND = "KubeSchedulerConfiguration"
SLOWEST_BIND = 9.5  # seconds that a bind may take
USUAL_TIMEOUT = 5.0  # seconds that kube-scheduler waits if httpTimeout is not set
OVERRULES = 12  # with at least this weight the extender overrules all in-tree plugins together
_PARTS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
SCHEDULER = "docs/install/kubeadm.md#4-configure-kube-scheduler"
SETTINGS = "docs/reference/settings.md"
DECIDE = f"{SETTINGS}#kube-schedulers-configuration"
CALL = f"{SETTINGS}#who-may-call-it"
ADDRESS = f"{SETTINGS}#which-address"
MEND = "run gpu-topology install"


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The installation that an entry must fit.

    ``resources`` are those that nodes serve, and ``addresses`` are the Service's. ``tls`` is true
    if the extender speaks TLS, and ``shadow`` if it refuses nothing. ``cluster_dns`` is true if
    kube-scheduler's pods use cluster DNS, and None if that is not known.
    """

    resources: Sequence[str] = ()
    addresses: Sequence[str] = ()
    tls: bool = True
    shadow: bool = False
    cluster_dns: bool | None = None


def entry_in(text: str) -> Json | str:
    """Return the first entry for our extender, or the reason why there is none."""
    found = entries_in(text)
    return found if isinstance(found, str) else found[0]


def entries_in(text: str) -> Sequence[Json] | str:
    """Return the entries for our extender, or the reason why there is none."""
    try:
        found = [each for each in documents(text) if at(each, "kind") == KIND]
    except YamlTextError as error:
        return f"it cannot be read: {error}"
    if not found:
        return f"it contains no object of the kind {KIND}"
    entries = at(found[0], "extenders")
    entries = [] if entries is None else entries
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        return "its extenders are not a list of mappings"
    ours: list[Json] = [each for each in entries if "gpu-topology" in str(each) or _gpus(each)]
    if not ours:
        return "none of its extenders manages GPUs" if entries else "it has no extenders"
    return ours


def _managed(entry: Json) -> dict[str, Any]:
    found = at(entry, "managedResources")
    return {str(at(each, "name")): each for each in found} if isinstance(found, list) else {}


def _gpus(entry: Json) -> bool:
    return any(name.startswith("nvidia.com/") for name in _managed(entry))


def judged(where: str, text: str, around: Around) -> Iterator[Finding]:
    """Yield the faults of a configuration, or one finding that it is correct."""
    entries = entries_in(text)
    if isinstance(entries, str):
        said = f"{where}: {entries}, so kube-scheduler does not call the extender"
        yield fail(said, MEND, SCHEDULER)
        return
    entry = entries[0]
    if len(entries) > 1:
        said = f"{where}: {len(entries)} of its extenders name gpu-topology or manage GPUs"
        yield fail(f"{said}; the first one is checked", "keep one of them", SCHEDULER)
    found = [*_verbs(entry, around), *_door(entry, around), *_settings(entry, around)]
    for each in found:
        yield Finding(each.state, f"{where}: {each.text}", each.remedy, each.page)
    if not found and len(entries) == 1:
        url, count = entry.get("urlPrefix"), len(_managed(entry))
        mode = ", in shadow" if around.shadow else ""
        yield ok(f"{where}: calls {url} for {count} resources{mode}")


def _verbs(entry: Json, around: Around) -> Iterator[Finding]:
    wanted = ["filter", "prioritize", *([] if around.shadow else ["bind", "preempt"])]
    for verb in wanted:
        if (told := entry.get(f"{verb}Verb")) == verb:
            continue
        said = f"{verb}Verb is {told!r}, but must be {verb}" if told else f"{verb}Verb is missing"
        if verb == "preempt":
            yield warn(f"{said}, so preemption may evict more pods than necessary", MEND, DECIDE)
        else:
            yield fail(said, MEND, SCHEDULER)
    served = dict.fromkeys(around.resources or ("nvidia.com/gpu",))
    missing = sorted(served.keys() - _managed(entry).keys())
    if missing and _managed(entry):
        yield fail(
            f"managedResources lacks {listed(missing)}: kube-scheduler does not call the "
            "extender for their pods",
            f"add {'it' if len(missing) == 1 else 'them'}",
            SCHEDULER,
        )
    elif missing:
        yield warn(
            "managedResources is missing, so kube-scheduler calls the extender for every pod of "
            "the cluster",
            MEND,
            SCHEDULER,
        )
    refused = [name for name in _managed(entry) if "kubernetes.io/" in name]
    if refused:
        yield fail(
            f"managedResources has {listed(refused)}: kube-scheduler exits because of such a name",
            "remove it",
            SCHEDULER,
        )
    ignored = [n for n, each in _managed(entry).items() if at(each, "ignoredByScheduler") is True]
    if ignored:
        yield fail(
            f"ignoredByScheduler is true for {listed(ignored)}, so kube-scheduler does not count "
            "their devices",
            "set it to false",
            SCHEDULER,
        )


def _door(entry: Json, around: Around) -> Iterator[Finding]:
    url, tls = str(entry.get("urlPrefix") or ""), entry.get("tlsConfig") or {}
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    if not host:
        yield fail(f"urlPrefix is {url!r}, which is not a URL", MEND, ADDRESS)
        return
    if around.tls and not url.startswith("https://"):
        yield fail(f"urlPrefix is {url}, but the extender accepts only TLS", "use https://", CALL)
    elif around.tls:
        if at(tls, "insecure") is True or not (at(tls, "caFile") or at(tls, "caData")):
            said = "tlsConfig has no caFile, or insecure is true"
            yield fail(
                f"{said}, so kube-scheduler does not verify the extender's certificate",
                "set caFile to ca.crt",
                CALL,
            )
        if not (at(tls, "certFile") or at(tls, "certData")):
            said = (
                "tlsConfig has no certFile, but the extender accepts no client without a "
                "certificate"
            )
            yield fail(
                said, "set certFile to scheduler.crt and keyFile to scheduler.key", SCHEDULER
            )
    if host.endswith(".svc") and around.cluster_dns is False:
        said = f"urlPrefix names {host}, but kube-scheduler's pod uses the host's DNS"
        yield fail(f"{said}, which does not know this name", "use the Service's IP", ADDRESS)
    elsewhere = False
    with suppress(ValueError):
        elsewhere = not ipaddress.ip_address(host).is_loopback
    if around.addresses and host not in around.addresses and elsewhere:
        said = f"urlPrefix names {host}, but the Service's address is {listed(around.addresses)}"
        yield warn(said, "use the Service's IP", ADDRESS)


def _settings(entry: Json, around: Around) -> Iterator[Finding]:
    told = entry.get("httpTimeout")
    seconds = USUAL_TIMEOUT if told is None else duration_of(str(told))
    if seconds is None:
        yield fail(f"httpTimeout is {told!r}, which is not a duration", "set it to 10s", DECIDE)
    elif seconds < SLOWEST_BIND and not around.shadow:
        said = f"httpTimeout is {seconds:g} s, but a bind may take {SLOWEST_BIND} s"
        yield warn(
            f"{said}, so kube-scheduler may retry a bind that was written", "set it to 10s", DECIDE
        )
    weight = entry.get("weight")
    if type(weight) is not int or weight < 1:  # True is an int as well
        yield fail(
            f"weight is {'missing' if weight is None else repr(weight)}", "set it to 5", DECIDE
        )
    elif weight >= OVERRULES:
        said = f"weight is {weight}, so the extender overrules all other scores"
        yield warn(said, "set it to 5", DECIDE)
    if entry.get("ignorable") is True and not around.shadow:
        said = "ignorable is true, so promises can be broken while the extender is down"
        yield warn(said, "set it to false", DECIDE)
    if entry.get("nodeCacheCapable") is not True:
        said = (
            "nodeCacheCapable is not true, so kube-scheduler sends whole Node objects, which is "
            "slow"
        )
        yield warn(said, "set it to true", SCHEDULER)


def duration_of(text: str) -> float | None:
    """Return a duration in Go's notation as seconds; None if the text is no duration.

    >>> duration_of("1m30s"), duration_of("10s"), duration_of("10")
    (90.0, 10.0, None)
    """
    parts = _PARTS.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
