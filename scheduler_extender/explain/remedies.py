"""The changes that would help a waiting pod: each is tried alone, on the current snapshot.

Either pods end, or the pod requests less: one constraint is less strict each time, the smallest
change first.

Nodes to which kube-scheduler will not send the pod, by its selector or their taints or cordon,
cannot help. They are left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any, Literal

from msgspec import Meta

from scheduler_extender.annotations import PREFIX, render
from scheduler_extender.deadline import Deadline, OutOfTimeError
from scheduler_extender.explain import Struct
from scheduler_extender.explain.answers import Answer
from scheduler_extender.explain.nodeanswers import Miss, miss_of
from scheduler_extender.explain.wording import listed, many, pod_names
from scheduler_extender.framework.afterwards import Afterwards
from scheduler_extender.framework.evaluator import evaluate, may_go
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.trials import Trials
from scheduler_extender.quantities import LEAST_MEMORY
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.devices import Bytes, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.links import GBps, LinkKind
from topology.core.placement import Reason
from topology.core.requests import Constraints, GpuRequest, Pattern, Policy, Role

# The possible values of ``link`` and ``nic``, the nearest first.
LEVELS = (LinkKind.NVLINK, LinkKind.PIX, LinkKind.PXB, LinkKind.PHB, LinkKind.NODE)
# The largest number of values of one key that are tried. Fewer GPUs and less memory are values,
# too.
MOST_VALUES = 8


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A request with one constraint less strict.

    ``key`` is the annotation without its prefix. ``value`` is its new value, or None if the
    annotation would be left out. For fewer devices the key is "count". ``words`` describes the
    change.
    """

    key: str
    value: str | None
    words: str
    request: GpuRequest


def relaxations(request: GpuRequest, nodes: Iterable[NodeTopology]) -> Iterator[Iterator[Relaxed]]:
    """Yield, for each key that the pod uses, its looser values, the smallest change first.

    The memories and link counts to try are those of ``nodes``.
    """
    wanted = request.constraints
    there = list({node.shape: node for node in nodes}.values())
    nvlinks = {link.nvlinks for node in there for link in node.shape.distinct_links} - {0}
    memories = {
        Bytes(memory // shares)
        for node in there
        for shares in {1, *(served.replicas for served in node.resources)}
        for memory in node.shape.memory
        if memory >= shares
    }
    over_pairs = wanted.link is not None or wanted.min_nvlinks is not None
    patterns = list(Pattern)[list(Pattern).index(wanted.pattern) + 1 :] if over_pairs else []
    bandwidths = [GBps((wanted.min_bandwidth or 0) * part) for part in (0.75, 0.5, 0.25)]
    used = wanted.gpu_memory or 0
    whole_mib = [Bytes(used * eighths // 8 >> 20 << 20) for eighths in (7, 6, 5, 4, 2)]

    def less(field: str, values: Iterable[Any] = (), nothing: Any = None) -> list[Constraints]:
        """Return constraints with each smaller value of a field, and at last with ``nothing``.

        Empty if the pod does not use the field.
        """
        used = getattr(wanted, field)
        looser = () if used == nothing else (*(value for value in values if value < used), nothing)
        return [replace(wanted, **{field: value}) for value in looser]

    tried = {
        "link": less("link", LEVELS),
        "min-nvlinks": less("min_nvlinks", sorted(nvlinks, reverse=True)),
        "shape": [replace(wanted, pattern=pattern) for pattern in patterns],
        "min-bandwidth": less("min_bandwidth", bandwidths),
        "min-gpu-memory": less("min_gpu_memory", sorted(memories, reverse=True)),
        "gpu-model": less("models", nothing=()),
        "same-numa": less("same_numa", nothing=False),
        "nic": less("nic", LEVELS),
        "same-gpu": less("same_gpu", nothing=False),
        "spread-gpus": less("spread_gpus", nothing=False),
        "gpu-memory": [replace(wanted, gpu_memory=m) for m in whole_mib if m >= LEAST_MEMORY],
        "sharing": less("exclusive_gpus", nothing=False),
    }
    for key, found in tried.items():
        yield (_relaxed(request, key, constraints) for constraints in found[:MOST_VALUES])
    yield islice(_fewer(request), MOST_VALUES)
    if request.required:
        words = "with policy=preferred, without a promise"
        preferred = replace(request, policy=Policy.PREFERRED)
        yield iter([Relaxed("policy", "preferred", words, preferred)])


def _relaxed(request: GpuRequest, key: str, constraints: Constraints) -> Relaxed:
    found = replace(request, constraints=constraints)
    before, after = (render(r).get(PREFIX + key) for r in (request, found))
    if key == "shape" and after is None:
        after = constraints.pattern.value
    if after is None:
        words = f"without {key}={before}"
    else:
        words = f"with {key}={after} in place of {before or Pattern.PAIRWISE.value}"
    return Relaxed(key, after, words, found)


def _fewer(request: GpuRequest) -> Iterator[Relaxed]:
    """Yield requests for fewer devices, if one container requests all of them.

    For few devices, each request has one less; for many, half as many.
    """
    if len(request.containers) != 1 or request.containers[0].role is not Role.APP:
        return
    if request.exclusive.demands:
        return  # how many CPUs it would need then is unknown
    (container,) = request.containers
    count = container.count
    while count > 1:
        count = count - 1 if count <= 8 else count // 2
        fewer = replace(request, containers=(replace(container, count=count),))
        words = f"with {fewer.count} {fewer.unit}{'s' if count > 1 else ''}"
        yield Relaxed("count", str(count), f"{words} in place of {request.count}", fewer)


# The largest number of nodes on which the ends of pods are tried, the nearest first.
MOST_NODES = 16
MOST_PODS = 64  # the largest number of pods of one node whose ends are tried
SHOWN_ENDS = 3
BY_AN_END = frozenset(
    {
        Reason.BUSY,
        Reason.SCATTERED,
        Reason.NOT_GUARANTEED,
        Reason.SICK,
        Reason.MEMORY_IN_USE,
        Reason.IN_PROGRESS,
        Reason.KUBELET,
    }
)


class Help(Struct, frozen=True, omit_defaults=False):
    """One change that would help: pods end, or an annotation requests less."""

    kind: Literal["end", "relax"]
    words: str
    nodes: Annotated[int, Meta(description="the number of nodes that would then take the pod")]
    node: str | None = None
    pods: Annotated[list[str], Meta(description="the pods on the node that end")] = []
    key: Annotated[
        str | None,
        Meta(description='the annotation that changes; "count" if the pod requests fewer devices'),
    ] = None
    value: Annotated[
        str | None, Meta(description="the new value; null if the annotation is removed")
    ] = None


@dataclass(slots=True)
class Helped:
    """The changes that would help, whether all were tried in time, and the misses.

    On nodes where ends of pods help, the misses are those of the sets that these ends make free.
    """

    helps: list[Help]
    whole: bool
    missing: list[tuple[Answer, Miss | None]]


class Ends:
    """Tries the ends of pods for one waiting pod, in one snapshot, until the deadline.

    ``trials`` belongs to the same ``snapshot``.
    """

    def __init__(
        self, snapshot: Snapshot, trials: Trials, pod: PodRecord, deadline: Deadline
    ) -> None:
        self.goes = may_go(snapshot, pod)  # whether the pod may go to a node at all
        self._trials = trials
        self._afterwards = Afterwards(snapshot, Question(pod, Purpose.EXPLAIN), deadline)
        self._deadline = deadline

    def lets_in(self, info: NodeInfo, request: GpuRequest, gone: frozenset[PodUid]) -> bool:
        """Check whether the node would take a pod with this request if these pods had ended.

        Raises :class:`.OutOfTimeError`.
        """
        self._deadline.check()
        if self._trials.answer(info, request, gone).rejection is not None:
            return False
        if not self._afterwards.of_set:
            return True
        return self._afterwards.on(info.without(gone), gone).rejection is None

    def fewest(
        self, info: NodeInfo, request: GpuRequest, uids: Sequence[PodUid]
    ) -> frozenset[PodUid] | None:
        """Return a minimal set of pods without which the node takes the pod.

        None of these pods could stay. Returns None if even the end of all of them does not help.
        Raises :class:`.OutOfTimeError`.
        """
        gone = frozenset(uids)
        if not self.lets_in(info, request, gone):
            return None
        for uid in uids:
            if self.lets_in(info, request, gone - {uid}):
                gone -= {uid}
        return gone


def helps_of(
    snapshot: Snapshot,
    pod: PodRecord,
    request: GpuRequest,
    answers: Sequence[tuple[Answer, Miss | None]],
    deadline: Deadline,
) -> Helped:
    """Return the changes that would help. Nothing is tried for a pod with claims of its own."""
    helped = Helped([], whole=True, missing=list(answers))
    if pod.claim_constraints is not None:
        return helped
    ended: dict[NodeName, frozenset[PodUid]] = {}
    nodes = [info.topology for info in snapshot.nodes if info.topology is not None]
    try:
        with deadline.enforced():
            for help_, gone in _ends(snapshot, pod, request, answers, deadline):
                helped.helps.append(help_)
                ended[NodeName(help_.node or "")] = gone
            for values in relaxations(request, nodes):
                for relaxed in values:
                    deadline.check()
                    question = Question(pod, Purpose.EXPLAIN, request=relaxed.request)
                    takes = len(evaluate(snapshot, question, None, deadline).passed)
                    if takes:
                        words = f"{relaxed.words}: {many(takes, 'node')} would take it now"
                        help_ = Help("relax", words, takes, key=relaxed.key, value=relaxed.value)
                        helped.helps.append(help_)
                        break
    except OutOfTimeError:
        helped.whole = False
    helped.missing = [
        (
            each,
            miss_of(each, request, snapshot.today, ended[each.node])
            if each.node in ended
            else miss,
        )
        for each, miss in answers
    ]
    return helped


def _ends(
    snapshot: Snapshot,
    pod: PodRecord,
    request: GpuRequest,
    answers: Sequence[tuple[Answer, Miss | None]],
    deadline: Deadline,
) -> Iterator[tuple[Help, frozenset[PodUid]]]:
    """Yield pods of the nearest nodes whose end would help.

    Yield one pod if its end alone would do, else a minimal set that must end together. Nothing is
    yielded for a member of a group, because it also waits for its group.
    """
    if pod.group_ref is not None and (pod.group_ref.gang or pod.group_ref.domain):
        return
    ends, helps = Ends(snapshot, Trials(snapshot), pod, deadline), 0
    near = [
        (miss, answer.info)
        for answer, miss in answers
        if miss is not None and answer.reason in BY_AN_END and ends.goes(answer.info)
    ]
    near.sort(key=lambda each: each[0].distance)
    for miss, info in near[:MOST_NODES]:
        named = dict(islice(_holders(info, request).items(), MOST_PODS))
        holders = {holding.pod for holding in miss.holders}  # of the nearest set: they come first
        nearest = sorted(named, key=lambda uid: named[uid] not in holders)
        alone = (uid for uid in nearest if ends.lets_in(info, request, frozenset({uid})))
        gone = list(islice(alone, 1))
        if not gone and len(nearest) > 1:
            together = ends.fewest(info, request, nearest[::-1]) or ()
            gone = [uid for uid in nearest if uid in together]
        if not gone:
            continue
        names = [named[uid] for uid in gone]
        verb = "ends" if len(names) == 1 else "end"
        words = f"{listed(names)} on {info.name} {verb}: the node takes the pod then"
        yield Help("end", words, 1, info.name, names), frozenset(gone)
        helps += 1
        if helps == SHOWN_ENDS:
            return


def _holders(info: NodeInfo, request: GpuRequest) -> Mapping[PodUid, str]:
    """Return the pods that hold some of the resource here, or will."""
    offer = info.last_offer(request.resource)
    shown = set(offer.ledger.shown) if isinstance(offer, Offer) else set()
    here = {
        pod.uid for pod in info.pods.bound.alive.values() if resource_of(pod) == request.resource
    }
    given = () if info.report is None else info.report.allocations
    # For a claim that several pods share, these pods end instead.
    shown -= {each.pod_uid for each in given if each.sharers and here >= {*each.sharers}}
    return {uid: name for uid, name in pod_names(info).items() if uid in here | shown}
