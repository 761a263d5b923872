"""The running pods whose GPUs lie further apart than their machine requires."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding, many
from scheduler_extender.explain.wording import pod_names, set_text
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question, alike
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid, positions
from topology.core.links import LinkKind
from topology.core.requests import Constraints, gpu_request
from topology.core.spread import spread_pods

ANOTHER = PodUid("another")
"""The UID of a pod like the running one, whose GPUs count as held."""
COLUMNS = {"pod": "pod", "node": "node", "GPUs": "gpus", "lacks": "lacks", "better now": "better"}


def find(evidence: Evidence) -> Finding:
    """Return the pods with several whole GPUs that lack NVLinks, or one NUMA node."""
    several, rows, better = 0, list[dict[str, Any]](), dict[Hashable, list[str]]()
    known = {pod.uid: pod for pod in evidence.snapshot.pods}
    for node in evidence.nodes:
        topology, report = node.topology, node.info.report
        if topology is None or report is None:
            continue
        for uid, gpus, lacks in spread_pods(topology, report.allocations):
            several += 1
            if not lacks:
                continue
            link = LinkKind.NVLINK if "nvlink" in lacks else None
            wanted = Constraints(link=link, same_numa="numa" in lacks)
            request, found = gpu_request(gpus.bit_count(), wanted), list[str]()
            if uid in known:
                asked = replace(known[uid], uid=ANOTHER, node=None, request=request, group_ref=None)
                if alike(asked) not in better:
                    better[alike(asked)] = _taking(evidence, asked)
                found = better[alike(asked)]
            rows.append(
                {
                    "pod": pod_names(node.info).get(uid, uid),
                    "node": node.name,
                    "gpus": set_text([topology.gpus[p].index for p in positions(gpus)]),
                    "size": request.count,
                    "lacks": list(lacks),
                    "better": found,
                }
            )
    unlinked, over = (sum(word in row["lacks"] for row in rows) for word in ("nvlink", "numa"))
    now = sum(bool(row["better"]) for row in rows)
    words = f"{many(several, 'pod')} with several whole GPUs: no pod's GPUs lie too far apart"
    if rows:
        words = (
            f"{many(several, 'pod')} with several whole GPUs: {unlinked:,} without NVLinks between "
            f"its GPUs, {over:,} over several NUMA nodes, although the machine has better sets. "
            f"A node has better GPUs now for {now:,}; what was free at the start is not known"
        )
    figures = {"pods": several, "withoutNvlinks": unlinked, "overNumaNodes": over, "better": now}
    return Finding("spreadPods", "Pods with several GPUs", words, figures, COLUMNS, rows)


def _taking(evidence: Evidence, pod: PodRecord) -> list[str]:
    """Return the nodes that would promise this now; none if the time is up."""
    nodes, attributes = evidence.snapshot.by_name, pod.attributes
    question = Question(pod, Purpose.EXPLAIN)
    passed = evaluate(evidence.snapshot, question, None, evidence.deadline).passed
    eligible = attributes.eligible_nodes, attributes.requests
    return [name for name in passed if not nodes[NodeName(name)].bar(*eligible)]
