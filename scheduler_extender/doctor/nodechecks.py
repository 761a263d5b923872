"""Checks of the parts on each node with GPUs.

These are NVIDIA's plugin and feature discovery, the agent, the kubelet's configuration and the
clock. Each check makes one finding for each node. A finding that many nodes share is printed once.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from msgspec import structs

from scheduler_extender.annotations import MANAGED
from scheduler_extender.doctor.findings import Finding, State, fail, ok, unseen, warn
from scheduler_extender.doctor.observations import (
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
from scheduler_extender.explain.wording import duration, listed
from topology.core.devices import NodeName
from topology.core.report import CLIENT
from topology.times import seconds_of

STALE = 180.0  # seconds after which a report no longer counts; the default of --stale-after
APART, FAR_APART = 5.0, 60.0  # seconds between two clocks
LABEL = "nvidia.com/gpu.present"  # the GPU operator sets it on nodes with GPUs
DISCOVERY, PLUGIN = "gpu-feature-discovery", "k8s-device-plugin"
AGENT, DRA = "docs/reference/agent.md", "docs/concepts/dra.md#moving-a-node-to-dra"
NO_RECORD_HELP = "docs/operate/troubleshooting.md#a-node-has-no-good-record"
KUBELETS = f"{AGENT}#the-kubelets-certificate"
UPGRADE = "docs/operate/day-2.md#when-the-gpu-operator-upgrades-a-driver"
HERE = "this machine"


def _of_each(said: Mapping[str, Finding | None], what: str = "nodes") -> Iterator[Finding]:
    """Yield each finding once, with the names that share it, or only their number if it is ok."""
    groups: dict[Finding, list[str]] = defaultdict(list)
    for name, each in said.items():
        if each is not None:
            groups[each].append(name)
    for each, names in groups.items():
        well = each.state is State.OK
        who = f"{len(names)} of {len(said)} {what}" if well else listed(sorted(names))
        yield structs.replace(each, text=f"{who}: {each.text}")


def _records(seen: Seen) -> dict[str, Record]:
    return {record.metadata.name: record for record in there(seen.records) or ()}


def _gpu_nodes(seen: Seen) -> dict[str, Node]:
    """Return the nodes that have GPUs, or should have a record."""
    known = _records(seen)
    return {
        node.metadata.name: node
        for node in there(seen.nodes) or ()
        if node.resources or node.labels.get(LABEL) == "true" or node.metadata.name in known
    }


def plugin(seen: Seen) -> Iterator[Finding]:
    """Report what serves the GPUs: which versions of NVIDIA's device plugin, or a DRA driver."""
    nodes, claimable = _gpu_nodes(seen), ok("a DRA driver")
    classes = [str(at(e, "spec", "extendedResourceName")) for e in there(seen.classes) or ()]
    if MANAGED[0] not in classes:
        said = f"a DRA driver, but no DeviceClass has extendedResourceName {MANAGED[0]}"
        claimable = warn(
            f"{said}: only pods with their own ResourceClaims get GPUs",
            "add it to the DeviceClass gpu.nvidia.com",
            DRA,
        )
    return _of_each(
        {
            name: claimable if _uses_dra(seen, name) else _plugin(seen, record, nodes.get(name))
            for name, record in _records(seen).items()
        }
    )


def _uses_dra(seen: Seen, name: str) -> bool:
    """Check whether ResourceSlices have a node's GPUs."""
    cluster = there(seen.cluster)
    return cluster is not None and bool(cluster.node_info(NodeName(name)).serves_claims)


def _plugin(seen: Seen, record: Record, node: Node | None) -> Finding:
    page = f"{AGENT}#the-device-plugin"
    if node is not None and not node.resources:
        cluster = there(seen.cluster)
        known = cluster.node_info(NodeName(record.metadata.name)).record if cluster else None
        if known is not None and known.problem is not None:
            return fail(f"its record is unusable: {known.problem}", "correct this", NO_RECORD_HELP)
        if isinstance(seen.classes, Unseen):
            return unseen(
                f"the kubelet serves no GPUs, and whether DRA does is unknown: {seen.classes.why}"
            )
        return fail("the kubelet serves no GPUs", "look at the log of NVIDIA's plugin", page)
    if not (version := record.spec.allocator.plugin_version):
        said = "the version of NVIDIA's plugin is unknown, so few promises are possible"
        return warn(said, "check that the plugin runs there", page)
    return ok(f"NVIDIA's plugin {version}")


def features(seen: Seen) -> Iterator[Finding]:
    """Check whether the nodes have the label that agents need, and report feature discovery."""
    tags = sorted({tag for each in there(seen.daemon_sets) or () for tag in _discovery(each)})
    runs = f"{DISCOVERY} {listed(tags)}" if tags else f"no DaemonSet of {DISCOVERY}"
    missing = warn(
        f"the label {LABEL} is missing, so no agent runs there; {runs}",
        f"label the nodes ({LABEL}=true), or choose the component every-node",
        f"{AGENT}#choices",
    )
    there_are = ok(f"labels; {runs}")
    every = _gpu_nodes(seen).items()
    return _of_each({name: there_are if LABEL in n.labels else missing for name, n in every})


def _discovery(daemon_set: Json) -> Iterator[str]:
    """Yield the versions of feature discovery in a DaemonSet.

    The image of NVIDIA's plugin also contains feature discovery.
    """
    for each in at(daemon_set, "spec", "template", "spec", "containers") or ():
        image, words = str(at(each, "image")), f"{at(each, 'command')} {at(each, 'args')}"
        if DISCOVERY in image or (PLUGIN in image and DISCOVERY in words):
            yield tag_of(image) or image


def agents(seen: Seen) -> Iterator[Finding]:
    """Check whether each GPU node has an agent whose report is fresh and complete."""
    records = _records(seen)
    told = seen.flags.get("--stale-after", "")
    oldest = seen.observed_at - (float(told) if told.isdecimal() else STALE)
    names = [*_gpu_nodes(seen)] or [*records]
    if not names:
        yield warn(
            "no node with GPUs was found", "look at NVIDIA's device plugin", f"{AGENT}#choices"
        )
    nodes = _gpu_nodes(seen)
    yield from _of_each(
        {
            name: _agent(nodes.get(name), records.get(name), oldest, _uses_dra(seen, name))
            for name in names
        }
    )
    if there(seen.gpu_clusters):
        yield warn(
            f"there is a GPUCluster: the GPU operator removes the label {CLIENT}, so it does not "
            "stop the agent before a driver upgrade, and the upgrade waits for the agent",
            "add a label of your own to the agents' nodeSelector, and remove it from a node "
            "before its upgrade",
            UPGRADE,
        )


def _agent(node: Node | None, record: Record | None, oldest: float, serves_claims: bool) -> Finding:
    if node is not None and (value := node.labels.get(CLIENT, "true")) != "true":
        said = f"under maintenance ({CLIENT}={value}): no agent runs"
        return warn(said, "wait until the maintenance ends", UPGRADE)
    if record is None:
        return fail(
            "no agent has reported", "check that the agent's pod runs there", NO_RECORD_HELP
        )
    look, reported = "look at the agent's pod and its log", seconds_of(record.status.observed_at)
    if reported is None or reported < oldest:
        return fail("the report is stale", look, NO_RECORD_HELP)
    if (ready := record.condition("Ready")).status == "False":
        return fail(f"the record is not Ready: {ready.message}", look, NO_RECORD_HELP)
    if not serves_claims and (complete := record.condition("Complete")).status == "False":
        page = f"{AGENT}#what-it-may-do"
        return warn(
            complete.message, "give the agent these permissions or files for more promises", page
        )
    return ok("the report is fresh")


def kubelets(seen: Seen) -> Iterator[Finding]:
    """Check whether each record agrees with its kubelet's own configuration."""
    every = _records(seen).items()
    return _of_each(
        {
            name: ok("a DRA driver serves the GPUs, so no kubelet chooses them")
            if _uses_dra(seen, name)
            else _kubelet(record, seen.kubelets.get(name))
            for name, record in every
        }
    )


def _kubelet(record: Record, kubelet: Kubelet | Unseen | None) -> Finding | None:
    told = record.spec.allocator
    if told.topology_manager_policy == "unknown":
        numa = {device.numa_node for device in record.spec.devices or ()}
        several, dark = len(numa) > 1, "the agent cannot read the kubelet's configuration"
        promises = "nothing is promised" if several else "fewer promises are possible"
        say = fail if several else warn
        return say(f"{dark}: {promises}", "allow the agent to read it", KUBELETS)
    if kubelet is None or isinstance(kubelet, Unseen):
        return unseen(kubelet.why) if kubelet is not None else None
    for field in Kubelet.__struct_fields__:
        ours, theirs = getattr(told, field), getattr(kubelet, field)
        if ours != theirs:
            said = f"the record says {field.replace('_', ' ')} {ours}, but the kubelet has {theirs}"
            mend = "remove the agent's flag or file, or restart the agent"
            return fail(f"{said}: promises can be broken", mend, KUBELETS)
    return ok("the kubelet's configuration matches the record")


def clocks(seen: Seen) -> Iterator[Finding]:
    """Check whether the clocks of nodes, leader and this machine agree with the API server's."""
    lease = there(seen.lease)
    writes = [at(w, "time") or "" for w in at(lease, "metadata", "managedFields") or ()]
    apart = {name: record.ahead for name, record in _records(seen).items()}
    apart["the leader's node"] = ahead(str(at(lease, "spec", "renewTime")), writes)
    apart[HERE] = seen.ahead
    return _of_each({name: _clock(name, seconds) for name, seconds in apart.items()}, "clocks")


def _clock(name: str, seconds: float | None) -> Finding | None:
    if seconds is None:
        return None
    if abs(seconds) < APART:
        return ok("in step with the API server's clock")
    side = "ahead of" if seconds > 0 else "behind"
    say = fail if abs(seconds) >= FAR_APART and name != HERE else warn
    said = f"the clock is {duration(abs(seconds))} {side} the API server's"
    mend = "correct its time service; otherwise reports look too old or too new"
    return say(said, mend, f"{AGENT}#what-it-publishes")
