"""The generated part of docs/reference/reasons.md: the reasons, and the messages of each.

The texts about several nodes come from the extender. Whether evictions can help is read from the
source, from each :class:`.Rejection` that it makes. Only the messages, what to do about them, and
what they leave open are written here, in :data:`MESSAGES`, :data:`OTHERS` and :data:`MEANINGS`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler_extender.explain.wording import REASON_WORDS
from topology.core.placement import Reason

ROOT = Path(__file__).parents[2]
VARIES = "…"
"""Stands for a number, a name or a constraint within a message."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about some messages, in Markdown. Without messages it is about the reason."""

    messages: tuple[str, ...]
    action: str


def _on(*messages: str, do: str) -> Advice:
    return Advice(messages, do)


EVICT = "Wait, or [plan evictions](../concepts/preemption.md)."
SHARES = "[the shares](../concepts/sharing.md) of each GPU"
DRA = "[DRA](../concepts/dra.md)"
LASTS = "Do nothing. If it lasts, check the node's kubelet and agent."
SYMPTOMS = "../operate/troubleshooting.md"
AGENT = "Read the log of the node's [agent](agent.md)."

MESSAGES: Mapping[Reason, tuple[Advice, ...]] = {
    Reason.LINKS: (
        _on(
            "the hardware has no … with …",
            do="Request less, or add other nodes.",
        ),
        _on(
            "MIG instances have no links, and the pod requires …",
            do="Leave out the keys about links.",
        ),
    ),
    Reason.HARDWARE: (_on("the hardware has no … with …", do="Request less, or add other nodes."),),
    Reason.MODEL: (
        _on(
            "GPU model is …, not …",
            "too few GPUs are of the model …",
            do="Request another model, or add other nodes.",
        ),
    ),
    Reason.MEMORY: (
        _on(
            "… memory is less than …",
            "each share's part of the … memory …",
            do="Request less, or add other nodes.",
        ),
    ),
    Reason.NIC: (
        _on(
            "too few …s have an RDMA NIC as near as …",
            do="Request less, or add other nodes.",
        ),
    ),
    Reason.TOO_FEW: (
        _on(
            "node has fewer …s than requested",
            do="Request fewer, or add larger nodes.",
        ),
    ),
    Reason.NOT_SERVED: (
        _on(
            "node does not serve the requested GPU resource",
            do="Request the plugin's resource (`nvidia.com/gpu.shared`?).",
        ),
        _on(
            "the node's GPUs are not served by DRA",
            do=f"Do nothing: the pod's claims need {DRA}.",
        ),
    ),
    Reason.SPLIT_BY_MIG: (
        _on(
            "too few whole GPUs: the others are split by MIG",
            "GPUs are split by MIG, and the request needs whole GPUs",
            do="Use other nodes, or request [MIG instances](../tasks/mig.md).",
        ),
        _on(
            "all GPUs of the node are split by MIG",
            do="Request MIG instances. If the Node still counts `nvidia.com/gpu`, restart the "
            "plugin there.",
        ),
    ),
    Reason.SHARES: (
        _on(
            "sharing=exclusive: …",
            do=f"Request a multiple of {SHARES}.",
        ),
        _on(
            "…: no … is on one GPU (same-gpu)",
            do=f"Request no more than {SHARES}, or use other nodes.",
        ),
    ),
    Reason.BUSY: (_on("not enough free …s", do=EVICT),),
    Reason.SCATTERED: (
        _on("no … with …", do=EVICT),
        _on(
            "the next free GPUs do not meet …",
            do="Wait, or give the pod a [claim](../tasks/claims.md) for other GPUs.",
        ),
    ),
    Reason.NOT_GUARANTEED: (
        _on(
            "not guaranteed: the node may hand out … without …",
            do="Wait, or write `policy: preferred`.",
        ),
        _on(
            "not guaranteed if a running GPU pod ends…: …",
            do="Wait, or run the extender without "
            "[`--require guaranteed`](settings.md#flags-of-the-extender).",
        ),
    ),
    Reason.SICK: (
        _on(
            "not guaranteed: the node may hand out a sick GPU",
            "the node would hand out a sick GPU",
            do="[Reset the GPU](agent.md#health) that `gpu-topology node` names, or cordon the "
            "node.",
        ),
    ),
    Reason.MEMORY_IN_USE: (
        _on("a GPU that the pod may get has too little memory left for …", do=EVICT),
        _on(
            "the pod may get a share of a GPU that is promised to …",
            do="Wait until the other pod has ended.",
        ),
    ),
    Reason.IN_PROGRESS: (
        _on("another GPU placement on the node is in progress", do=LASTS),
        _on(
            "an earlier bind of the pod to another node may still be written",
            do="Do nothing: other nodes may take the pod once two reads show it unbound (24 s).",
        ),
    ),
    Reason.RESERVED: (
        _on(
            "reserved for another pod until …",
            do="Wait: pods were [evicted](../concepts/preemption.md) for it.",
        ),
    ),
    Reason.KUBELET: (
        _on(
            "Topology Manager …: no NUMA node has … free",
            "Topology Manager …: the free devices for … are spread …",
            "CPU Manager: fewer than … CPUs are free",
            "CPU Manager full-pcpus-only: too few whole cores are free for … CPUs",
            "Memory Manager Static: no NUMA nodes have the requested memory free",
            do="Wait, or request less. `status.exclusive` of the record lists the CPUs.",
        ),
        _on(
            "Topology Manager …: the node can never align …",
            "Topology Manager …: a container without GPUs requests …",
            do="Request less in one container, or use nodes with another policy.",
        ),
        _on(
            "CPU Manager full-pcpus-only: … CPUs do not fill whole cores …",
            do="Request a multiple of the threads.",
        ),
        _on(
            "NVIDIA's device plugin fails when it chooses …",
            "NVIDIA's device plugin fails because …",
            do="Use other nodes: the [plugin crashes](../concepts/outcomes.md#hazards).",
        ),
        _on(
            "… refuses every pod with whole GPUs while … not answer",
            do="[Reset the GPU](agent.md#a-gpu-that-does-not-answer), or reboot the node.",
        ),
        _on(
            "NVIDIA's device plugin refuses a container …",
            do="Request one share in each container, or [allow several](agent.md#several-shares).",
        ),
        _on(
            "not guaranteed: the node's kubelet may refuse the pod",
            do="`check` names the [hazard](../concepts/outcomes.md#hazards).",
        ),
        _on(
            "not guaranteed: the record does not say on which NUMA nodes … (…)",
            "not guaranteed: the node's Topology Manager policy is unknown",
            do="Let the agent read [the kubelet](agent.md#the-kubelets-certificate).",
        ),
        _on(
            "this node's kubelet may refuse the pod, and another node's will not",
            do="Do nothing: `--refusals possible` prefers others.",
        ),
        _on(
            "the pod's status names a ResourceClaim, …",
            do=f"Free GPUs on nodes with {DRA}, or create the pod again.",
        ),
    ),
    Reason.REFUSING: (
        _on(
            "the node's kubelet has refused … (…); it gets one such pod now and then",
            do=f"Repair the node and [resume it]({SYMPTOMS}#a-pod-fails-as-soon-as-it-is-bound).",
        ),
    ),
    Reason.GROUP: (
        _on(
            "the node is in no domain of the kind …",
            "the pod's group is in another domain",
            "the pod's group is spread over several domains, …",
            "the pod's gang is placed in another domain",
            "reserved for members of another group",
            do="Do nothing: other nodes may take [the group](../concepts/groups.md).",
        ),
        _on(
            "no node has the label … of group-domain…",
            do="Correct the annotation, or label the nodes.",
        ),
        _on(
            "the members of the group disagree …",
            do="Make their annotations equal.",
        ),
        _on(
            "the node is in no NVLink domain: …",
            do="Repair [the fabric](agent.md#the-nvlink-fabric).",
        ),
        _on(
            "the domain cannot hold the pod's whole group",
            "only … of the group's … members fit at once",
            do=EVICT,
        ),
        _on(
            "the domain is too small for the pod's whole group, …",
            do="Use a smaller group or another domain.",
        ),
        _on(
            "the domain of the pod's group has no capacity …",
            do="Wait, or delete the bound members.",
        ),
        _on(
            "the pod would take GPUs that other members of its group need",
            do="Do nothing: another node of the domain takes the pod.",
        ),
        _on(
            "other pods of the gang may take the GPUs first",
            do="Wait: without its peers the pod would pass.",
        ),
    ),
    Reason.NO_REPORT: (_on("no topology report", do=AGENT),),
    Reason.STALE: (_on("topology report is stale", do=AGENT),),
    Reason.MAINTENANCE: (
        _on(
            "node is under maintenance",
            do="Wait for [the GPU operator](../operate/day-2.md#when-the-gpu-operator-upgrades-a-"
            "driver).",
        ),
    ),
    Reason.NOT_READY: (
        _on(
            "topology report is not Ready",
            do=f"The record's condition Ready says [why]({SYMPTOMS}#a-node-has-no-good-record).",
        ),
    ),
    Reason.UNUSABLE: (
        _on(
            "topology record unusable",
            do="`kubectl gpu-topology node NODE` says what is wrong with it.",
        ),
    ),
    Reason.NO_ALLOCATOR: (
        _on(
            "the node's DRA driver has published no GPUs yet",
            do="Read the log of the DRA driver's pod there.",
        ),
        _on(
            "neither a device plugin nor a DRA driver serves the node's GPUs",
            "no DeviceClass has extendedResourceName …",
            do=f"Check ResourceSlices and DeviceClass ({DRA}), or use claims.",
        ),
        _on(
            "init containers with GPUs are not supported on a node with DRA",
            do="Let the pod's other containers request GPUs.",
        ),
    ),
    Reason.CLAIMS: (
        _on(
            "no free devices of the node match the pod's claims",
            do=f"{EVICT} On an empty node, check selectors and device taints.",
        ),
        _on(
            "the pod's claims get no GPUs on this node",
            do="Let a claim request GPUs, or remove the annotations and `nvidia.com/gpu`.",
        ),
        _on(
            "the pod's claim has no devices yet, …",
            do="Do nothing. If it lasts, read the extender's log.",
        ),
        _on(
            "the pod's claim has GPUs on a node …",
            do="Do nothing: the agent's next record shows the claims.",
        ),
        _on(
            "a GPU of the pod's claim is no longer in any ResourceSlice",
            do="If it lasts, delete the claim: the driver has withdrawn the GPU.",
        ),
    ),
    Reason.UNDECIDED: (
        _on(
            "not guaranteed: the node has too many possible outcomes to evaluate",
            do="Use fewer containers or a simpler pattern ([limits](../concepts/outcomes.md"
            "#limits)).",
        ),
        _on(
            "not guaranteed: the node could not be evaluated",
            do="If `node_faults_total` grows, report the log's traceback. Else check the agent.",
        ),
        _on(
            "the node's state is unknown, and a pod there …",
            do=AGENT,
        ),
        _on(
            "which GPUs the pod's claims get is unknown: …",
            do="Do nothing: bind checks the GPUs.",
        ),
    ),
    Reason.MALFORMED: (_on(do="Correct the annotation that the message names."),),
    Reason.OUT_OF_DATE: (
        _on(
            "the extender's view of the cluster is out of date",
            do="Look for [the stale watch](../operate/alerts.md#gputopologywatchfailing).",
        ),
    ),
}
"""The messages by reason, one entry for every reason but ``OTHER``, which no message has."""

MEANINGS: Mapping[Reason, str] = {
    Reason.NOT_GUARANTEED: "A suitable set of GPUs is free, but the pod may get another set.",
    Reason.IN_PROGRESS: "A bind is being written, or the node has not reported a bound pod yet.",
    Reason.NO_REPORT: "The node's agent has written no record yet.",
    Reason.STALE: "The node's agent has not reported for too long.",
    Reason.MAINTENANCE: "The GPU operator is changing the node's driver or MIG layout.",
    Reason.NOT_READY: "The node's agent cannot see which pods have which GPUs.",
    Reason.UNUSABLE: "The node's record contradicts itself or cannot be read.",
}
"""The meaning of each reason that its messages do not explain."""

OTHERS = (
    _on(
        "the gpu-topology extender is still evaluating …",
        "the node's kubelet has not admitted the earlier pods yet; …",
        "the bind waited until kube-scheduler gave it up; …",
        do=LASTS,
    ),
)
"""Messages of filter and bind that are no refusal by a node."""


def messages() -> str:
    """Return a section for each reason: its meaning, its messages, and what to do."""
    found = resolvable()
    sections = (
        [f"## {each.value}", "", _meaning(each, found[each]), "", *_lines(advice)]
        for each, advice in MESSAGES.items()
    )
    others = ["## Other messages", "", *_lines(OTHERS)]
    return "\n".join(line for section in (*sections, others) for line in section).rstrip()


def _meaning(reason: Reason, found: frozenset[bool]) -> str:
    says = f"*{REASON_WORDS[reason]}*"
    if meaning := MEANINGS.get(reason):
        says += f": {meaning}"
    if True in found:
        says += f"{'' if meaning else '.'} Evictions {'may' if False in found else 'can'} help."
    return says


def _lines(every: tuple[Advice, ...]) -> Iterator[str]:
    for advice in every:
        said = ", ".join(f"`{message}`" for message in advice.messages)
        yield f"* {said}: {advice.action}" if said else f"* {advice.action}"
    yield ""


def resolvable() -> Mapping[Reason, frozenset[bool]]:
    """Return, for each reason, whether its rejections in the source are resolvable.

    A rejection that decides it only at run time counts as both.
    """
    found = defaultdict[Reason, set[bool]](set)
    for package in ("topology", "scheduler_extender"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or len(node.args) != 3:
                    continue
                if not isinstance(node.func, ast.Name) or node.func.id != "Rejection":
                    continue
                _, helps, kind = node.args
                values = {bool(helps.value)} if isinstance(helps, ast.Constant) else {True, False}
                for each in ast.walk(kind):
                    if isinstance(each, ast.Attribute) and each.attr in Reason.__members__:
                        found[Reason[each.attr]] |= values
    return {reason: frozenset(values) for reason, values in found.items()}


PARTS = (messages,)
"""The generated part of the page."""
