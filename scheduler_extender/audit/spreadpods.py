"""The running pods whose GPUs lie further apart than their machine requires."""

from collections.abc import Hashable
from dataclasses import replace

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding, many
from scheduler_extender.explain import Struct
from scheduler_extender.explain.wording import listed, pod_names, set_text
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question, alike
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid, positions
from topology.core.links import LinkKind
from topology.core.placement.spread import SeveralGpus, pods_with_several
from topology.core.requests import Constraints, gpu_request

ANOTHER = PodUid("another")
"""The UID of a pod that takes nobody's place: the GPUs of the pod itself count as held."""


class SpreadPod(Struct, frozen=True):
    """A running pod with several GPUs."""

    pod: str
    node: str
    gpus: list[int]
    without_nvlinks: bool
    over_numa_nodes: bool
    better_nodes: list[str]  # those that would promise such a pod better GPUs now


def find(evidence: Evidence) -> Finding:
    """Return the pods with several whole GPUs that lack NVLinks, or one NUMA node."""
    several, rows = 0, list[SpreadPod]()
    known = {pod.uid: pod for pod in evidence.snapshot.pods}
    better: dict[Hashable, list[str]] = {}
    for node in evidence.nodes:
        topology, report = node.topology, node.info.report
        pods = pods_with_several(topology, report.allocations) if topology and report else []
        several += len(pods)
        for pod in pods:
            if not (pod.unlinked or pod.over_numa_nodes) or topology is None:
                continue
            found = list[str]()
            if pod.uid in known:
                asked = _asked(known[pod.uid], pod)
                if alike(asked) not in better:
                    better[alike(asked)] = _taking(evidence, asked)
                found = better[alike(asked)]
            name = pod_names(node.info).get(pod.uid, pod.uid)
            gpus = [topology.gpus[p].index for p in positions(pod.gpus)]
            rows.append(SpreadPod(name, node.name, gpus, *pod[2:], found))
    unlinked = sum(row.without_nvlinks for row in rows)
    over, now = sum(row.over_numa_nodes for row in rows), sum(bool(r.better_nodes) for r in rows)
    words = f"{many(several, 'pod')} with several GPUs: none has GPUs that lie too far apart"
    if rows:
        words = (
            f"{many(several, 'pod')} with several GPUs: {unlinked:,} without NVLinks between its "
            f"GPUs, {over:,} over several NUMA nodes, although the machine has better sets; for "
            f"{now:,} a node has better GPUs now, and what was free at the start is not known"
        )
    return Finding(
        "spreadPods",
        "Pods with several GPUs",
        words,
        rows,
        (
            ("pod", lambda row: row.pod),
            ("node", lambda row: row.node),
            ("GPUs", lambda row: set_text(row.gpus)),
            ("lacks", _lacks),
            ("better now on", lambda row: listed(row.better_nodes) or "no node"),
        ),
        (("pods", several), ("withoutNvlinks", unlinked), ("overNumaNodes", over), ("better", now)),
    )


def _lacks(row: SpreadPod) -> str:
    given = {"NVLinks": row.without_nvlinks, "one NUMA node": row.over_numa_nodes}
    return listed([word for word, lacks in given.items() if lacks])


def _asked(pod: PodRecord, held: SeveralGpus) -> PodRecord:
    """Return another pod with as many GPUs, which requires what this one lacks."""
    link = LinkKind.NVLINK if held.unlinked else None
    wanted = Constraints(link=link, same_numa=held.over_numa_nodes)
    request = gpu_request(held.gpus.bit_count(), wanted)
    return replace(pod, uid=ANOTHER, node=None, request=request, group_ref=None, claims=())


def _taking(evidence: Evidence, pod: PodRecord) -> list[str]:
    """Return the nodes that would promise this now; none if the time is up."""
    snapshot, attributes = evidence.snapshot, pod.attributes
    results = evaluate(snapshot, Question(pod, Purpose.EXPLAIN), None, evidence.deadline)
    return [
        name
        for name in map(NodeName, results.passed)
        if not snapshot.by_name[name].bar(attributes.eligible_nodes, attributes.requests)
    ]
