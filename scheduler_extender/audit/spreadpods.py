"""The running pods whose GPUs lie further apart than their machine requires."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding
from scheduler_extender.explain.gpustates import USED
from scheduler_extender.explain.wording import many, pod_names, set_text
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question, alike
from topology.core.devices import PodUid, positions
from topology.core.links import LinkKind
from topology.core.requests import Constraints, gpu_request
from topology.core.spread import LACKS, spread_pods

ANOTHER = PodUid("another")  # a pod like the running one, whose GPUs count as held
COLUMNS = {"pod": "pod", "node": "node", "GPUs": "gpus", "lacks": "lacks", "better now": "better"}


def find(evidence: Evidence) -> Finding:
    """Return the pods with several whole GPUs that lack NVLinks, or one NUMA node."""
    rows, better = list[dict[str, Any]](), dict[Hashable, list[str]]()
    known = {pod.uid: pod for pod in evidence.snapshot.pods}
    held = [
        (node, topology, *found)
        for node in evidence.nodes
        if (topology := node.topology) and (report := node.info.report)
        for found in spread_pods(topology, report.allocations)
    ]
    for node, topology, uid, gpus, lacks in (each for each in held if each[-1]):
        link = LinkKind.NVLINK if "nvlink" in lacks else None
        wanted = Constraints(link=link, same_numa="numa" in lacks)
        request, nodes = gpu_request(gpus.bit_count(), wanted), list[str]()
        if uid in known:
            pod = replace(known[uid], uid=ANOTHER, node=None, request=request, group_ref=None)
            if alike(pod) not in better:
                better[alike(pod)] = evaluate(
                    evidence.snapshot, Question(pod, Purpose.EXPLAIN), None, evidence.deadline
                ).passed
            nodes = better[alike(pod)]
        rows.append(
            {
                "pod": pod_names(node.info).get(uid, uid),
                "node": node.name,
                "gpus": set_text([topology.gpus[p].index for p in positions(gpus)]),
                # A sick GPU of the pod does not count as in use.
                "inUse": sum(gpu.use in USED for p, gpu in enumerate(node.gpus) if gpus >> p & 1),
                "lacks": list(lacks),
                "better": nodes,
            }
        )
    unlinked, over = (sum(word in row["lacks"] for row in rows) for word in LACKS)
    now = sum(bool(row["better"]) for row in rows)
    lies = "no pod's GPUs lie too far apart"
    if rows:
        lies = (
            f"{unlinked:,} without NVLinks between its GPUs, {over:,} over several NUMA nodes, "
            "although the machine has better sets. "
            f"A node has better GPUs now for {now:,}; what was free at the start is not known"
        )
    words = f"{many(len(held), 'pod')} with several whole GPUs: {lies}"
    return Finding(
        "spreadPods",
        "Pods with several GPUs",
        words,
        {"pods": len(held), "withoutNvlinks": unlinked, "overNumaNodes": over, "better": now},
        COLUMNS,
        rows,
    )
