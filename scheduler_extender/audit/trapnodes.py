"""The nodes whose Topology Manager refuses pods of a size that is in use here.

kube-scheduler counts the free GPUs of a node and sends it pods that its kubelet refuses, again and
again. The extender keeps these pods off.
"""

from collections import Counter, defaultdict
from collections.abc import Collection

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding
from scheduler_extender.explain.wording import NODES_NOT_IN_TIME, many
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.state.node.history import kind_of
from scheduler_extender.state.pods.record import PodRecord
from topology.core.admission import AFFINITY
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest

EMPTY = "even when it is empty"
NOW = "now"
PERHAPS = "now, depending on which GPUs its plugin chooses"  # the extender lets plain pods in
COLUMNS = {"nodes": "nodes", "policy": "policy", "refuses pods with": "request", "when": "refuses"}


def find(evidence: Evidence) -> Finding:
    """Return the trap nodes for the requests of all running and waiting pods."""
    kinds = Counter(
        kind_of(pod.request)
        for pod in evidence.snapshot.pods
        if isinstance(pod.request, GpuRequest) and not pod.ended
    )
    policies: dict[str, str] = {
        node.name: node.topology.allocator.topology_manager_policy
        for node in evidence.nodes
        if node.topology is not None
    }
    found = defaultdict[tuple[str, GpuRequest, str], list[str]](list)
    for kind in kinds:
        pod = PodRecord(PodUid(""), "", "", None, kind)
        for name, when in keeps_off(evidence, pod, policies).items():
            if when and policies[name] != "none":
                found[policies[name], kind, when].append(name)
    rows = [
        {
            "nodes": sorted(names),
            "policy": policy,
            "request": kind.text,
            "pods": kinds[kind],
            "refuses": when,
        }
        for (policy, kind, when), names in sorted(found.items(), key=lambda each: -len(each[1]))
    ]
    traps = len({name for names in found.values() for name in names})
    words = (
        f"The Topology Manager of {many(traps, 'node')} would refuse pods of a size that runs or "
        "waits here, although enough GPUs are free"
        if traps
        else "No node's Topology Manager would refuse a pod of a size that runs or waits here"
    )
    words += f"; {NODES_NOT_IN_TIME}" if evidence.deadline.passed() else ""
    return Finding("trapNodes", "Trap nodes", words, {"nodes": traps}, COLUMNS, rows)


def keeps_off(evidence: Evidence, pod: PodRecord, names: Collection[str]) -> dict[str, str]:
    """Return when the extender keeps such a pod off each node although enough GPUs are free.

    ``NOW``: with the pods that run there. ``EMPTY``: even without them, which is also tried if too
    few GPUs are free now. ``PERHAPS``: the kubelet may refuse the pod, but the extender lets it in.
    An empty text: never. Nodes without an answer are missing: no record, or no time.
    """
    found, question = dict[str, str](), Question(pod, Purpose.EXPLAIN, ignores_group=True)
    for when, snapshot in ((NOW, evidence.snapshot), (EMPTY, evidence.emptied)):
        answers = evaluate(snapshot, question, [*names], evidence.deadline)
        for name, answer in answers.decisions.items():
            if (judged := answer.assessment) is not None:
                rejected = {each.reason for each in (answer.rejection, *answer.also) if each}
                lasting = filter(None, (judged.refusal, judged.rejection))
                if judged.fits and any(each.reason in rejected for each in lasting):
                    found[name] = when
                elif when is NOW:
                    found[name] = PERHAPS if judged.fits and AFFINITY in judged.hazards else ""
    return found
