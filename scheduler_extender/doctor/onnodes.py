"""Checks of what is on each node with GPUs: NVIDIA's plugin and feature discovery, the agent, the
kubelet's configuration and the clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from scheduler_extender.doctor.findings import Finding, fail, ok, unseen, warn
from scheduler_extender.doctor.seen import (
    Json,
    Kubelet,
    Node,
    Record,
    Seen,
    Unseen,
    ahead,
    at,
    tag_of,
    there,
)
from scheduler_extender.told.words import duration, listed
from topology.times import seconds_of

STALE = 180.0  # seconds after which a report counts no more: --stale-after
APART, FAR_APART = 5.0, 60.0  # seconds between two clocks
LABEL = "nvidia.com/gpu.present"  # of gpu-feature-discovery, on nodes with GPUs
DISCOVERY, PLUGIN = "gpu-feature-discovery", "k8s-device-plugin"
AGENT, OPERATIONS = "docs/agent.md", "docs/operations.md"
NO_RECORD = "docs/troubleshooting.md#a-node-has-no-good-record"
KUBELETS = f"{AGENT}#the-kubelets-certificate"


def _gpu_nodes(seen: Seen) -> list[Node]:
    known = {record.metadata.name for record in there(seen.records) or ()}
    return [
        node
        for node in there(seen.nodes) or ()
        if node.resources
        or (node.metadata.labels or {}).get(LABEL) == "true"
        or node.metadata.name in known
    ]


def _grouped(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names by what is said of them, as text."""
    groups: dict[str, list[str]] = defaultdict(list)
    for said, name in found:
        groups[said].append(name)
    return {said: listed(sorted(names)) for said, names in groups.items()}


def agents(seen: Seen) -> Iterator[Finding]:
    """Whether each GPU node has an agent, and its report is fresh and complete."""
    records = {record.metadata.name: record for record in there(seen.records) or ()}
    nodes = [node.metadata.name for node in _gpu_nodes(seen)] or list(records)
    if not nodes:
        yield warn(
            "no node with GPUs is known", "look at NVIDIA's device plugin", f"{AGENT}#choices"
        )
        return
    missing = [name for name in nodes if name not in records]
    if missing:
        yield fail(f"no agent has reported {listed(missing)}", "does its pod run there?", NO_RECORD)
    told = seen.flags.get("--stale-after", "")
    stale = float(told) if told.isdecimal() else STALE
    bad: list[tuple[str, str]] = []
    thin: list[tuple[str, str]] = []
    for name in nodes:
        if (record := records.get(name)) is None:
            continue
        age = seconds_of(record.status.observed_at)
        ready, complete = record.condition("Ready"), record.condition("Complete")
        if age is None or seen.now - age > stale:
            old = "no report yet" if age is None else f"its report is over {duration(stale)} old"
            bad.append((old, name))
        elif ready.status == "False":
            bad.append((f"not Ready: {ready.message}", name))
        elif complete.status == "False":
            thin.append((complete.message, name))
    for said, some in _grouped(bad).items():
        yield fail(f"{some}: {said}", "look at the agent's pod and its log", NO_RECORD)
    for said, some in _grouped(thin).items():
        yield warn(
            f"{some}: {said}",
            "fewer promises: see what it needs",
            f"{AGENT}#what-it-needs-and-for-what",
        )
    well = len(nodes) - len(missing) - len(bad)
    if well:
        yield ok(f"{well} of {len(nodes)} GPU nodes have a fresh report")


def kubelets(seen: Seen) -> Iterator[Finding]:
    """Whether it is known how each kubelet hands out devices."""
    records = {record.metadata.name: record for record in there(seen.records) or ()}
    wrong: list[tuple[str, str]] = []
    for name, record in records.items():
        if record.spec.allocator.topology_manager_policy == "unknown":
            several = record.on_several_sockets
            wrong.append(("nothing is promised" if several else "fewer promises", name))
    for said, some in _grouped(wrong).items():
        say = fail if said.startswith("nothing") else warn
        text = f"{some}: the agent cannot read the kubelet's configuration: {said}"
        yield say(text, "choose a way", KUBELETS)
    apart: list[tuple[str, str]] = []
    dark: list[tuple[str, str]] = []
    alike = 0
    for name, kubelet in seen.kubelets.items():
        if isinstance(kubelet, Unseen):
            dark.append((kubelet.why, name))
        elif other := _other(records[name], kubelet):
            apart.append((other, name))
        else:
            alike += 1
    for said, some in _grouped(apart).items():
        yield fail(
            f"{some}: {said}: promises can break",
            "take the flag of the agent away, or restart it",
            KUBELETS,
        )
    for said, some in _grouped(dark).items():
        yield unseen(said if said.startswith("you") else f"{some}: its kubelet: {said}")
    if alike:
        yield ok(f"{alike} of {len(seen.kubelets)} kubelets are configured as their records say")


def _other(record: Record, kubelet: Kubelet) -> str:
    """In what a kubelet differs from its record, which may not know it."""
    told = record.spec.allocator
    for field in Kubelet.__struct_fields__:
        ours, theirs = getattr(told, field), getattr(kubelet, field)
        known = ours != "unknown" and told.topology_manager_policy != "unknown"
        if known and ours != theirs:
            return f"the record says {field.replace('_', ' ')} {ours}, the kubelet {theirs}"
    return ""


def plugin(seen: Seen) -> Iterator[Finding]:
    """Which versions of NVIDIA's device plugin serve the GPUs."""
    records = there(seen.records) or ()
    versions = _grouped(
        (record.spec.allocator.plugin_version, record.metadata.name) for record in records
    )
    if silent := versions.pop("", None):
        yield warn(
            f"{silent}: no version of the plugin is known, so little is promised",
            "does it run there?",
            f"{AGENT}#the-device-plugin",
        )
    serving = {node.metadata.name for node in there(seen.nodes) or () if node.resources}
    idle = [r.metadata.name for r in records if serving and r.metadata.name not in serving]
    if idle:
        yield fail(
            f"{listed(sorted(idle))}: its kubelet serves no GPUs",
            "look at the plugin's log",
            f"{AGENT}#the-device-plugin",
        )
    if versions:
        yield ok("; ".join(f"{version} on {some}" for version, some in sorted(versions.items())))
    elif not records:
        yield unseen("no node's record tells of it")


def features(seen: Seen) -> Iterator[Finding]:
    """Whether GPU feature discovery labels the nodes on which agents shall run."""
    tags = sorted({tag for each in there(seen.daemon_sets) or () for tag in _discovery(each)})
    nodes = _gpu_nodes(seen)
    without = [n.metadata.name for n in nodes if LABEL not in (n.metadata.labels or {})]
    runs = f"{DISCOVERY} {listed(tags)}" if tags else f"no DaemonSet of {DISCOVERY}"
    if without:
        yield warn(
            f"{listed(sorted(without))}: no label {LABEL}, so no agent runs there; {runs}",
            "install it, or choose the component every-node",
            f"{AGENT}#choices",
        )
    elif nodes:
        yield ok(f"{len(nodes)} of {len(nodes)} GPU nodes have its labels; {runs}")
    else:
        yield unseen("no node with GPUs is known")


def _discovery(daemon_set: Json) -> Iterator[str]:
    """The versions of feature discovery in a DaemonSet. The plugin's image has it, too."""
    for each in at(daemon_set, "spec", "template", "spec", "containers") or ():
        image = str(at(each, "image"))
        words = [str(w) for key in ("command", "args") for w in at(each, key) or ()]
        if DISCOVERY in image or (PLUGIN in image and any(DISCOVERY in word for word in words)):
            yield tag_of(image) or image


def clocks(seen: Seen) -> Iterator[Finding]:
    """Whether the clocks of nodes, leader and this machine are the API server's."""
    lease = there(seen.lease)
    writes = [at(w, "time") or "" for w in at(lease, "metadata", "managedFields") or ()]
    apart = {"this machine": seen.ahead}
    apart["the leader's node"] = ahead(str(at(lease, "spec", "renewTime")), writes) or 0.0
    known, records = 0, there(seen.records) or ()
    for record in records:
        known += record.ahead is not None
        apart[record.metadata.name] = record.ahead or 0.0
    for name, seconds in apart.items():
        if abs(seconds) < APART:
            continue
        ours = name == "this machine"
        say = fail if abs(seconds) >= FAR_APART and not ours else warn
        side = "ahead of" if seconds > 0 else "behind"
        yield say(
            f"{name}: its clock is {duration(abs(seconds))} {side} the API server's",
            "mend its time service: reports look old or new by it",
            f"{AGENT}#what-it-publishes",
        )
    if all(abs(seconds) < APART for seconds in apart.values()):
        yield ok(f"this machine and {known} of {len(records)} nodes have the API server's time")
