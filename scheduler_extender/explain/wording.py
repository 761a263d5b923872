"""Texts for people: verdicts, sets of GPUs, pods, reasons, requests and durations."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice

from rich.text import Text

from scheduler_extender.annotations import Malformed
from scheduler_extender.groupreference import GroupReference
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import PodUid, runs
from topology.core.links import LinkKind
from topology.core.placement import Reason, Rejection
from topology.core.requests import (
    OF_CLAIMS,
    Constraints,
    GpuRequest,
    Pattern,
    Policy,
    first_few,
    memory_text,
)

SHOWN_SETS = 4
NOT_IN_TIME = "not evaluated in time"
NODES_NOT_IN_TIME = "not all nodes were evaluated in time"
CHANGES_NOT_IN_TIME = "not all changes were evaluated in time"
GONE_POD = "a pod that is gone"  # stands for the name of a pod that is not known any more

STYLES = {
    "guaranteed": "bold green",
    "expected": "green",
    "not-guaranteed": "yellow",
    "not-now": "red",
    "never": "dim red",
    "unknown": "dim",
}
# The text of a verdict on a node that takes the pod nevertheless. The verdict is about constraints
# that the pod only prefers.
WHERE_IT_FITS = {
    "not-now": "fits, preferred: not-now",
    "never": "fits, preferred: never",
}


def verdict_text(verdict: str, *, passes: bool = False) -> Text:
    """Return a verdict as text; ``passes`` says that the node would take the pod.

    >>> verdict_text("not-now").plain, verdict_text("expected").plain
    ('not-now', 'expected')
    >>> verdict_text("never", passes=True).plain
    'fits, preferred: never'
    """
    if passes and verdict in WHERE_IT_FITS:
        return Text(WHERE_IT_FITS[verdict], STYLES["not-guaranteed"])
    return Text(verdict, STYLES[verdict])


def sets_text(outcomes: Sequence[Sequence[int]]) -> str:
    """Return some sets of GPUs in brief.

    >>> sets_text([[0, 1], [2, 3]]), sets_text([[0, 1, 2, 3], [0, 1, 2, 7]])
    ('0,1 | 2,3', '0-3 | 0-2,7')
    """
    text = " | ".join(map(set_text, outcomes[:SHOWN_SETS]))
    more = len(outcomes) - SHOWN_SETS
    return f"{text} | … {more} more" if more > 0 else text


def set_text(gpus: Sequence[int]) -> str:
    """Return one set of GPUs in brief; three and more in a row are a range.

    >>> set_text((0, 1)), set_text((0, 1, 2, 5, 6, 7)), set_text(())
    ('0,1', '0-2,5-7', '')
    """
    found = runs(gpus)
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ",".join(map(str, r)) for r in found)


# The text about several nodes that reject a pod for one reason, with different messages.
REASON_WORDS: dict[Reason, str] = {
    Reason.LINKS: "lack links",
    Reason.HARDWARE: "have no suitable GPUs",
    Reason.MODEL: "have another GPU model",
    Reason.MEMORY: "have too little memory on each GPU",
    Reason.NIC: "have no NIC near enough",
    Reason.TOO_FEW: "are too small",
    Reason.NOT_SERVED: "do not serve the resource",
    Reason.SPLIT_BY_MIG: "are split by MIG",
    Reason.SHARES: "share GPUs differently",
    Reason.NO_ALLOCATOR: "serve no GPUs to the pod",
    Reason.CLAIMS: "have no devices for the pod's claims",
    Reason.NO_REPORT: "wait for a report",
    Reason.STALE: "wait for a report",
    Reason.NOT_READY: "wait for a report",
    Reason.MAINTENANCE: "are under maintenance",
    Reason.UNUSABLE: "have an unusable record",
    Reason.BUSY: "are busy",
    Reason.SCATTERED: "have only unsuitable GPUs free",
    Reason.NOT_GUARANTEED: "cannot guarantee the right GPUs",
    Reason.SICK: "may hand out a sick GPU",
    Reason.MEMORY_IN_USE: "have too little GPU memory left",
    Reason.IN_PROGRESS: "are placing other pods",
    Reason.RESERVED: "are reserved for another pod",
    Reason.KUBELET: "have a kubelet that may refuse the pod",
    Reason.REFUSING: "are in back-off after refusals",
    Reason.GROUP: "do not suit the pod's group",
    Reason.UNDECIDED: "could not be evaluated",
    Reason.MALFORMED: "cannot read the pod's request",
    Reason.OUT_OF_DATE: "may be out of date",
    Reason.OTHER: "reject the pod",
}
OF_THE_GROUP = REASON_WORDS[Reason.GROUP]


def sentence(rejected: Mapping[Rejection, int]) -> str:
    """Return the nodes that reject a pod, counted, in one line.

    Reasons with the same words form one part. It gives filter's message if the nodes share it, else
    the words of the reason. The words about a group say too little, so the most frequent message
    follows them. The largest number of nodes comes first. Empty for no nodes.

    >>> links = Rejection("the hardware has no set of 2 GPUs with link=pix", False, Reason.LINKS)
    >>> gpus = Rejection("not enough free GPUs", True, Reason.BUSY)
    >>> sentence({links: 12, gpus: 1, Rejection("not enough free shares", True, Reason.BUSY): 2})
    'the hardware has no set of 2 GPUs with link=pix (12 nodes); 3 nodes are busy'
    """
    by_words: dict[str, dict[str, int]] = {}
    for why, nodes in rejected.items():
        messages = by_words.setdefault(REASON_WORDS[why.reason], {})
        messages[why.message] = messages.get(why.message, 0) + nodes
    counted = sorted((-sum(messages.values()), words) for words, messages in by_words.items())
    return "; ".join(_part(-less, words, by_words[words]) for less, words in counted)


def _part(nodes: int, words: str, messages: Mapping[str, int]) -> str:
    often = min(messages, key=lambda message: (-messages[message], message))
    if len(messages) == 1:
        return f"{often} ({many(nodes, 'node')})"
    more = f" ({many(messages[often], 'node')}: {often})" if words == OF_THE_GROUP else ""
    return f"{nodes:,} nodes {words}{more}"


def many(n: int, word: str) -> str:
    """Return a number of things as text.

    >>> many(1, "pod"), many(2000, "pod")
    ('1 pod', '2,000 pods')
    """
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def pod_names(info: NodeInfo) -> dict[PodUid, str]:
    """Return the names of all pods of the node, also of those that only its report names."""
    reported = {
        (a.pod_uid or PodUid(f"{a.namespace}/{a.pod}")): f"{a.namespace}/{a.pod}"
        for a in (info.report.allocations if info.report is not None else ())
    }
    return reported | {pod.uid: pod.full_name for pod in info.pods.every}


def withheld(info: NodeInfo) -> str:
    """Return the text about a GPU that no pod holds and no pod gets."""
    if info.serves_claims:
        return "in no ResourceSlice, or tainted"
    return "not handed out by the kubelet"


def asks_text(request: GpuRequest | Malformed) -> str:
    """Return a request in a few words, or why it cannot be read."""
    return request.reason if isinstance(request, Malformed) else request.text


def asked_text(pod: PodRecord) -> str:
    """Return a pod's request and its group in a few words; empty if the request cannot be read."""
    if isinstance(pod.request, Malformed):
        return ""
    group = pod.group_ref.text if pod.group_ref is not None else ""
    return f"{pod.request.text} {group}".strip()


def request_text(request: GpuRequest) -> str:
    """Return a pod's request as a sentence, with the annotations that express it.

    >>> from topology.core.requests import gpu_request
    >>> request_text(gpu_request(2, Constraints(link=LinkKind.NVLINK)))
    '2 GPUs: every two linked by NVLink (link=nvlink)'
    """
    unit = f"{request.unit}{'s' if request.count != 1 else ''}"
    profile = request.resource.partition("/mig-")[2].removesuffix(".shared")
    asked = " ".join(filter(None, (f"{request.count}", unit, profile)))
    if not request.effective_count:
        asked = OF_CLAIMS
    words = list(_constraints(request.constraints))
    if not words:
        return f"{asked} without constraints"
    preferred = " – preferred, not required" if request.policy is Policy.PREFERRED else ""
    return f"{asked}: {'; '.join(words)}{preferred}"


def not_joined(request: GpuRequest, group_ref: GroupReference | None) -> str:
    """Return a warning that keys about several GPUs of a pod do not join the pods of a group.

    It applies if each pod of the group has one GPU. Empty if it does not apply.
    """
    wanted = request.constraints
    given = {
        "link": wanted.link,
        "min-nvlinks": wanted.min_nvlinks,
        "min-bandwidth": wanted.min_bandwidth,
        "same-numa": wanted.same_numa,
    }
    keys = [key for key, value in given.items() if value]
    if group_ref is None or request.count != 1 or not keys:
        return ""
    return (
        f"{' and '.join(keys)}: applies to the GPUs of one pod, and each pod of the group has "
        "one GPU; to get linked GPUs, request all of them in one pod"
    )


def _constraints(wanted: Constraints) -> Iterable[str]:  # noqa: C901 (a line for each key)
    joined = {
        Pattern.PAIRWISE: "every two linked",
        Pattern.RING: "linked in a ring",
        Pattern.CONNECTED: "all linked, directly or through others,",
    }[wanted.pattern]
    if wanted.link is LinkKind.NVLINK:
        yield f"{joined} by NVLink (link=nvlink)"
    elif wanted.link is not None:
        yield f"{joined} as near as {wanted.link.name} (link={wanted.link.name.lower()})"
    if wanted.min_nvlinks is not None:
        yield f"{joined} by {wanted.min_nvlinks} NVLinks or more (min-nvlinks={wanted.min_nvlinks})"
    if wanted.min_bandwidth is not None:
        yield (
            f"a ring of {wanted.min_bandwidth:g} GB/s or more "
            f"(min-bandwidth={wanted.min_bandwidth:g})"
        )
    if wanted.min_gpu_memory is not None:
        yield f"{memory_text(wanted.min_gpu_memory)} of memory each (min-gpu-memory)"
    if wanted.models:
        yield f"of the model {first_few(wanted.models)} (gpu-model)"
    if wanted.same_numa:
        yield "on one NUMA node (same-numa)"
    if wanted.nic is not None:
        yield f"an RDMA NIC as near as {wanted.nic.name} (nic={wanted.nic.name.lower()})"
    if wanted.same_gpu:
        yield "all on one GPU (same-gpu)"
    if wanted.spread_gpus:
        yield "no two on one GPU (spread-gpus)"
    if wanted.gpu_memory is not None:
        yield f"{memory_text(wanted.gpu_memory)} used on each GPU (gpu-memory)"
    if wanted.exclusive_gpus:
        yield "no other pod on its GPUs (sharing=exclusive)"


def duration(seconds: float) -> str:
    """Return a time span in its largest whole unit.

    >>> [duration(s) for s in (12, 90, 3 * 3600 + 240, 200_000)]
    ['12 s', '1 min', '3 h', '2 d']
    """
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def gpus_text(indices: Sequence[int]) -> str:
    """Return GPUs by their indices.

    >>> gpus_text([5]), gpus_text([4, 5, 6])
    ('GPU 5', 'GPUs 4-6')
    """
    return f"GPU{'s' if len(indices) != 1 else ''} {set_text(indices)}"


def near_names(name: str, known: Iterable[str], most: int = 10_000) -> list[str]:
    """Return up to three names that are similar to ``name``, among the first ``most`` known ones.

    Names that begin with it come first. An empty name is similar to none.

    >>> near_names("train-1", ["train-01", "serve-1", "train-1-gpu", "web"])
    ['train-1-gpu', 'train-01']
    """
    names = list(islice(known, most))
    longer = (each for each in names if name and each.startswith(name))
    return list(dict.fromkeys([*longer, *get_close_matches(name, names, cutoff=0.75)]))[:3]


def listed(words: Sequence[str], most: int = 3) -> str:
    """Return some words joined into one text; of many, only the first ones.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a and b', 'a, b, c and 2 more')
    """
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most:,} more"
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
