"""Checks of the parts that a cluster has once.

These are kube-scheduler's configuration, the extender, its certificates, the resource and the
policies.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

from scheduler_extender.doctor import schedulerconfig
from scheduler_extender.doctor.findings import Finding, fail, ok, unseen, warn
from scheduler_extender.doctor.observations import (
    SECOND,
    Certificate,
    Json,
    Seen,
    Unseen,
    at,
    first_container,
    tag_of,
    there,
)
from scheduler_extender.doctor.schedulerconfig import ADDRESS, SCHEDULER, Around
from scheduler_extender.explain.wording import duration, listed
from topology.times import seconds_of
from topology.yamltext import documents

SOON = 14 * 86_400.0  # seconds before a certificate expires
NAMESPACE = "gpu-topology-system"  # the namespace in the manifests
AGENT, OPERATIONS = "docs/reference/agent.md", "docs/operate/day-2.md"
CERTIFICATES = f"{OPERATIONS}#certificates"
UPGRADE = "docs/install/upgrade.md#upgrade"
INSTALL = "docs/install/second-scheduler.md#2-install-the-chart"
NAME_IT = (
    "run this on a control-plane node, or copy the file here and give --scheduler-config FILE; "
    "--forward shows the requests of kube-scheduler"
)
DOOR = "docs/operate/troubleshooting.md#all-gpu-pods-wait"


def scheduler(seen: Seen) -> Iterator[Finding]:
    """Check whether kube-scheduler's configuration has a correct entry for the extender.

    If there is a second kube-scheduler, the first one needs no configuration.
    """
    second = any(each.where == SECOND for each in seen.configurations)
    pods = () if second else there(seen.schedulers) or ()
    for pod in pods:
        if not _config_of(pod):
            said = f"{at(pod, 'metadata', 'name')} runs without --config, so it calls no extender"
            yield fail(said, "add the flag on its control-plane node", SCHEDULER)
    for each in seen.configurations:
        around = _around(seen)
        if each.where == SECOND:  # its pods use cluster DNS
            around = replace(around, cluster_dns=True)
        yield from schedulerconfig.judged(each.where, each.text, around)
    if not seen.configurations:
        read = sorted({file for pod in pods if (file := _config_of(pod))})
        where = (
            f"the file {listed(read)} on its node"
            if read
            else "not found in any object of the cluster"
        )
        if isinstance(seen.schedulers, Unseen):
            where = seen.schedulers.why
        if read or not pods:
            yield unseen(f"its configuration: {where}", NAME_IT, SCHEDULER)
    yield from _requests(seen)


def _config_of(pod: Json) -> str:
    """Return the file that a kube-scheduler's pod has as its --config; empty if it has none."""
    words = [str(w) for key in ("command", "args") for w in first_container(pod).get(key) or ()]
    found = re.search(r"--config[= ](\S+)", " ".join(words))
    return found[1] if found else ""


def _around(seen: Seen) -> Around:
    flags, pods = seen.flags, there(seen.schedulers)
    nodes = there(seen.nodes) or ()
    dns = None
    if pods:
        dns = all(
            at(pod, "spec", "hostNetwork") is not True
            or at(pod, "spec", "dnsPolicy") == "ClusterFirstWithHostNet"
            for pod in pods
        )
    return Around(
        resources=sorted({name for node in nodes for name in node.resources}),
        addresses=at(there(seen.service), "spec", "clusterIPs") or (),
        tls=not flags or "--tls-cert" in flags,
        shadow="--shadow" in flags,
        cluster_dns=dns,
    )


def _requests(seen: Seen) -> Iterator[Finding]:
    """Report kube-scheduler's requests to the replica whose metrics were read."""
    if isinstance(seen.metrics, Unseen):
        return
    asked: dict[str, float] = defaultdict(float)
    failed = 0.0
    for name, labels, value, *_ in seen.metrics:
        if name == "gpu_topology_requests_total":
            asked[labels["verb"]] += value
            failed += value if labels["code"][:1] in "45" else 0.0
    total = sum(asked.values())
    if not total:
        said = "kube-scheduler has sent this replica no request since the replica started"
        yield warn(said, "create a pod with a GPU and run this again", DOOR)
    elif failed * 2 > total:
        yield fail(f"{failed:,.0f} of {total:,.0f} requests failed", "look at the log", DOOR)
    else:
        verbs = ", ".join(f"{verb} {n:,.0f}" for verb, n in sorted(asked.items()) if n)
        yield ok(f"kube-scheduler has sent this replica requests: {verbs}")


def extender(seen: Seen) -> Iterator[Finding]:
    """Check whether a replica leads and another one can take over."""
    found, pods = there(seen.extender), "look at its pods and their logs"
    page = "docs/operate/alerts.md#gputopologynoleader"
    if found is None:
        yield fail(
            f"there is no Deployment gpu-topology-extender in {seen.system}",
            "install it, or give its namespace with --system",
            INSTALL,
        )
        return
    wanted, ready = at(found, "spec", "replicas") or 1, at(found, "status", "readyReplicas") or 0
    if not ready:
        yield fail(f"no replica of {wanted} is ready", pods, page)
    elif ready < wanted:
        yield warn(f"{ready} of {wanted} replicas are ready", pods, page)
    elif wanted < 2:
        yield warn(
            "only one replica runs, so no other replica can take over",
            "run two replicas",
            f"{OPERATIONS}#when-the-extender-is-down",
        )
    lease = at(there(seen.lease), "spec")
    holder, lasts = at(lease, "holderIdentity"), at(lease, "leaseDurationSeconds") or 10
    written = seconds_of(str(at(lease, "renewTime")))
    renewed = None if written is None else max(0.0, seen.observed_at - written)
    if not holder or renewed is None:
        yield fail("no replica leads: no replica holds the Lease gpu-topology", pods, page)
    elif renewed > lasts + 2:
        yield fail(f"no replica leads: its Lease is {duration(renewed)} old", pods, page)
    elif not at(there(seen.leader), "endpoints", 0, "addresses"):
        yield fail(f"{holder} leads, but the Service has no address", pods, page)
    else:
        yield ok(f"{holder} leads; {ready} of {wanted} replicas are ready")
    runs = tag_of(str(first_container(at(found, "spec", "template")).get("image")))
    if re.fullmatch(r"v?\d+\.\d+\.\d+", runs) and runs.removeprefix("v") != seen.version:
        yield warn(
            f"the extender is version {runs} but this command is {seen.version}, so the checks "
            "below compare different releases",
            "use the command of the same release",
            UPGRADE,
        )


def certificates(seen: Seen) -> Iterator[Finding]:
    """Check whether the certificates exist and fit each other, and when they expire."""
    needed = {
        "gpu-topology-tls": "--tls-cert" in seen.flags,
        "gpu-topology-scheduler": any(each.where == SECOND for each in seen.configurations),
    }
    for name in filter(needed.get, seen.missing):
        said = f"the Secret {name} is missing, so pods that mount it do not start"
        yield fail(said, "create it with `gpu-topology certificates`", CERTIFICATES)
    readable = [each for each in seen.certificates if isinstance(each, Certificate)]
    yield from (unseen(each.why) for each in seen.certificates if isinstance(each, Unseen))
    ends = ((each.where, each.expires - seen.observed_at) for each in readable)
    yield from (_end(where, left) for where, left in ends if left < SOON)
    yield from _trust(seen, readable)
    for name, _, value, *_ in there(seen.metrics) or ():
        if name == "gpu_topology_tls_reload_failing" and value:
            said = "the extender cannot use the new TLS files and keeps the old ones"
            yield fail(said, "look at its log", CERTIFICATES)
        if name == "gpu_topology_tls_expires_timestamp_seconds" and not readable and value:
            yield _end("the extender's certificate", value - seen.observed_at)
    if readable:
        least = min(each.expires for each in readable) - seen.observed_at
        if least >= SOON:
            yield ok(f"{len(readable)} certificates; the first one expires in {duration(least)}")


def _end(what: str, left: float) -> Finding:
    """Return the finding about a certificate that expires in ``left`` seconds."""
    if left >= SOON:
        return ok(f"{what} expires in {duration(left)}")
    verb = f"expires in {duration(left)}" if left > 0 else f"expired {duration(-left)} ago"
    return (warn if left > 0 else fail)(f"{what} {verb}", "renew the certificates", CERTIFICATES)


def _trust(seen: Seen, found: list[Certificate]) -> Iterator[Finding]:
    """Check whether each side has a certificate that the other side accepts."""
    trusted: dict[str, list[Certificate]] = defaultdict(list)
    for each in found:
        if each.whose == "authority":
            trusted[each.where].append(each)
    for each in found:
        if each.whose == "authority":
            continue
        doubts = [w for w, those in trusted.items() if not any(map(each.signed_by, those))]
        if doubts:
            said = f"{each.where} is not signed by {listed(sorted(doubts))}"
            yield fail(
                said, "use files of the same certificate authority on both sides", CERTIFICATES
            )
        client = seen.flags.get("--client-name", "kube-scheduler")
        if each.whose == "scheduler" and each.common_name != client:
            yield fail(
                f"{each.where} is for {each.common_name}, but the extender accepts only {client}",
                "create it with --client-name",
                CERTIFICATES,
            )
        if each.whose == "extender":
            yield from _named(seen, each)


def _named(seen: Seen, certificate: Certificate) -> Iterator[Finding]:
    """Check whether kube-scheduler expects a name that the extender's certificate has."""
    for each in seen.configurations:
        name = at(schedulerconfig.entry_in(each.text), "tlsConfig", "serverName")
        if name and name not in certificate.names:
            yield fail(
                f"{each.where}: serverName is {name}, which is not a name in {certificate.where}",
                "set serverName to one of its names",
                ADDRESS,
            )


def resource(seen: Seen) -> Iterator[Finding]:
    """Check whether the resource GPUTopology is the one of this release."""
    (shipped,) = _shipped("crd", seen.system)
    apply, page = "apply manifests/base/crd.yaml of this release, or upgrade the chart", UPGRADE
    found = there(seen.crd)
    if found is None:
        yield fail("the cluster does not have the resource GPUTopology", "install it", INSTALL)
    elif (other := difference(shipped["spec"], found.get("spec"), "spec")) is not None:
        yield fail(f"the CustomResourceDefinition is from another release: {other}", apply, page)
    else:
        yield ok("the CustomResourceDefinition is from this release")


def policies(seen: Seen) -> Iterator[Finding]:
    """Check whether the admission policies are those of this release."""
    live = {(e["kind"], at(e, "metadata", "name")): e for e in there(seen.policies) or ()}
    wrong = right = 0
    for file, needed in {"policy": True, "agentpolicy": True, "validation": False}.items():
        for shipped in _shipped(file, seen.system):
            kind, name = key = shipped["kind"], shipped["metadata"]["name"]
            if "AdmissionPolicy" not in kind:
                continue
            other = difference(shipped["spec"], at(live.get(key), "spec"), "spec")
            if key not in live:
                other = "it is missing" if needed else None
            else:
                right += 1
            if other is not None:
                wrong += 1
                said = f"{kind} {name}: {other}"
                yield fail(said, "apply the manifests of this release", UPGRADE)
    if not wrong:
        yield ok(f"{right} policies and bindings are from this release")


def _shipped(name: str, system: str) -> list[Json]:
    """Return the objects of a manifest of this release, for the installation's namespace."""
    text = files("scheduler_extender.doctor").joinpath("shipped", f"{name}.yaml").read_text()
    return documents(text.replace(NAMESPACE, system))


def difference(shipped: Any, live: Any, where: str) -> str | None:
    """Return the first difference of a live object from the shipped one; None without any.

    An API server adds defaults, and these count as equal. A property of a schema that we do not
    ship counts as a difference.

    >>> difference({"a": [1, 2]}, {"a": [1, 3], "b": 0}, "spec")
    'spec.a.1 differs'
    """
    if isinstance(shipped, dict) and isinstance(live, dict):
        if where.endswith(".properties") and (more := sorted(live.keys() - shipped.keys())):
            return f"{where}.{more[0]} is not in this release"
        for key, value in shipped.items():
            if key not in live:
                if value in ({}, [], None):
                    continue
                return f"{where}.{key} is missing"
            if (other := difference(value, live[key], f"{where}.{key}")) is not None:
                return other
        return None
    if isinstance(shipped, list) and isinstance(live, list) and len(shipped) == len(live):
        every = enumerate(zip(shipped, live, strict=True))
        return next((o for n, (a, b) in every if (o := difference(a, b, f"{where}.{n}"))), None)
    return None if shipped == live else f"{where} differs"
