"""Write the known cluster as a cluster file that replays exactly this state.

The file has one YAML document for each node, pod and PodDisruptionBudget. Each is JSON on one line,
so that a large file is read fast. Comments say what cannot be replayed: nodes whose record is
missing or unusable, stale nodes (a file never goes stale), and pods that ended before any report
showed them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from scheduler_extender.files.clusterfile import SNAPSHOT, SNAPSHOT_VERSION
from scheduler_extender.groupreference import CLIQUE_LABEL, NODE, NVLINK_DOMAIN
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.attributes import quantities_of
from scheduler_extender.state.pods.budgets import budget_manifest
from scheduler_extender.state.pods.record import PodRecord, manifest_of
from topology import codec
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest

HEAD = "# A gpu-topology cluster file: check and simulate take it as --cluster."
NO_BUDGETS = " PodDisruptionBudgets are left out, because they could not be read."


def cluster_file(cluster: Cache) -> Iterator[bytes]:
    """Yield the file piece by piece.

    The state is that of the call, whenever the pieces are taken.
    """
    snapshot = cluster.snapshot()
    nodes, budgets = snapshot.nodes, snapshot.budgets
    unbound = [snapshot.waiting[pod.uid] for pod in snapshot.unbound]  # as the API server has them
    pods = [*unbound, *(pod for node in nodes for pod in node.pods.every)]
    here = {pod.uid for pod in pods} - {pod.uid for pod in unbound}
    kinds = {pod.group_ref.domain for pod in pods if pod.group_ref is not None}
    rest = [_document(manifest_of(pod)) for pod in unbound]
    rest += [_document(budget_manifest(budget)) for budget in budgets or ()]
    head = HEAD if budgets is not None else HEAD + NO_BUDGETS
    return _pieces(head, nodes, here, rest, _labels(kinds))


def _labels(kinds: set[str | None]) -> set[str]:
    """Return the node labels that identify domains of these kinds."""
    named = {kind for kind in kinds if kind is not None} - {NODE, NVLINK_DOMAIN}
    return named | {CLIQUE_LABEL} if NVLINK_DOMAIN in kinds else named


def _pieces(
    head: str, nodes: Sequence[NodeInfo], here: set[PodUid], rest: list[bytes], labels: set[str]
) -> Iterator[bytes]:
    yield f"{head}\n".encode()
    for node in nodes:
        for note in _notes(node):
            yield f"# {' '.join(f'{node.name}: {note}'.split())}\n".encode()
        if node.topology is not None and not _unusable(node):
            yield _document(codec.encode(node.topology, node.report))
            seen = node.node_object
            told = {
                key: seen.labels[key] for key in sorted(seen.labels) if seen.exists or key in labels
            }
            if told or seen.exists or seen.cordoned:
                yield _document(_node(node, told))
        for pod in node.pods.every:
            if pod.uid not in here:
                continue  # it is only nominated
            yield _document(manifest_of(_as_shown(pod, node)))
    yield from rest


def _node(node: NodeInfo, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a Node with these labels, its cordon and taints, and its allocatable amounts.

    If the Node object was known, an annotation says so. Then its labels are read as complete.
    """
    metadata: dict[str, Any] = {"name": node.name, "labels": labels}
    if node.node_object.exists:
        metadata["annotations"] = {SNAPSHOT: SNAPSHOT_VERSION}
    spec: dict[str, Any] = {"unschedulable": True} if node.node_object.cordoned else {}
    if node.node_object.taints:
        spec["taints"] = [msgspec.to_builtins(taint) for taint in node.node_object.taints]
    manifest: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    if spec:
        manifest["spec"] = spec
    if node.node_object.allocatable:
        manifest["status"] = {"allocatable": quantities_of(node.node_object.allocatable)}
    return manifest


def _as_shown(pod: PodRecord, node: NodeInfo) -> PodRecord:
    """Return the pod as running if an earlier report has shown it, whatever its own status says.

    Rejected pods stay rejected while they keep the node from taking pods.
    """
    shown = pod.uid in node.pods.acknowledged and pod.phase == "Pending"
    asked = pod.request
    if pod.refusal and not (isinstance(asked, GpuRequest) and node.refusing(asked)):
        pod = replace(pod, refusal=None)  # it counts no more; a file does not say its age
    return replace(pod, phase="Running") if shown else pod


def _unusable(node: NodeInfo) -> str:
    """Return why nothing is promised on the node, if a file could not show it."""
    if node.topology is None or node.report is None:
        return node.record.problem or "no topology report"
    return "its GPUs are served by DRA only" if node.unserved else ""


def _notes(node: NodeInfo) -> Iterator[str]:
    if _unusable(node):
        yield f"left out, {_unusable(node)}"
    if node.record.stale:
        yield "its report was stale"
    for backoffs in node.history.backoffs.values():
        for kind, backoff in backoffs.of_kind.items():
            said = (
                f"{len(backoff.refusals)} pods in a row with the request {kind.text}: "
                f"{backoff.reason}"
            )
            yield f"its kubelet refused {said}"
    if node.pods.terminated:
        gone = len(node.pods.terminated)
        yield f"{gone} pods that ended before any report showed them are left out"


def _document(manifest: object) -> bytes:
    return b"---\n" + msgspec.json.encode(manifest) + b"\n"
