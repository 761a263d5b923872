"""Asks nodes about one request: cached answers are used, and missing ones are worked out.

They are worked out on the node infos of a :class:`.Snapshot`, with no lock held. Answers that are
complete at the deadline stay cached, so that the next call continues from there. The other nodes
are answered as *undecided*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, count, repeat
from operator import is_
from typing import ParamSpec, TypeVar

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.framework.nodedecision import decide, placement_cost, undecided
from scheduler_extender.framework.possiblerefusals import unless_others_are_sure
from scheduler_extender.framework.stalewatches import OUT_OF_DATE, unless_stale
from scheduler_extender.state.answers.classes import ClassId
from scheduler_extender.state.answers.decision import Decision, Settings
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core import scoring
from topology.core.devices import NodeName
from topology.core.memo import interruptible
from topology.core.requests import GpuRequest
from topology.core.scoring import PlacementCost, Score, classes_of

P = ParamSpec("P")
T = TypeVar("T")
RACK_LEVELS = 3  # the number of rack levels that scores tell apart, the fullest rack first


@dataclass(slots=True)
class NodeAnswers:
    """The answers of some nodes to one request."""

    request: GpuRequest
    names: Sequence[str]
    # Each node's equivalence class, in the order asked. None for a node that is unknown, and for a
    # node whose class could not be found; the latter is among the ``undecided``.
    class_ids: list[ClassId | None]
    distinct: set[ClassId | None]  # the same classes without repetition
    decisions: dict[ClassId, Decision]
    node_scores: dict[ClassId, Score] = field(default_factory=dict)
    # The answers for nodes where deciding failed, or for which there was no time.
    undecided: dict[str, Decision] = field(default_factory=dict)
    late: frozenset[str] = frozenset()  # the nodes for which there was no time

    def each(self) -> Iterator[tuple[str, Decision | None]]:
        """Yield every node with its answer, in the order asked; None for a node that is unknown."""
        for name, class_id in zip(self.names, self.class_ids, strict=True):
            decision = self.decisions.get(class_id) if class_id is not None else None
            yield name, decision or self.undecided.get(name)

    def of_all(self, alike: Mapping[str, Sequence[str]]) -> NodeAnswers:
        """Return these answers for all nodes that are ``alike``, by the name of the one asked."""
        asked = list(zip(self.names, self.class_ids, strict=True))
        return replace(
            self,
            names=[name for first in self.names for name in alike[first]],
            class_ids=[class_id for first, class_id in asked for _ in alike[first]],
            undecided={n: each for first, each in self.undecided.items() for n in alike[first]},
            late=frozenset(name for first in self.late for name in alike[first]),
        )


def answer(
    snapshot: Snapshot, info: NodeInfo, request: GpuRequest, deadline: Deadline = NO_DEADLINE
) -> Decision:
    """Return the answer of one node with this info, worked out now.

    The answer is undecided if deciding fails, or if there is no time.

    Raises :class:`OutOfTimeError` if only an outer deadline has passed.
    """
    decision = undecided(info, request)
    with deadline.ends():
        interruptible()
        decision = tried(snapshot, info, decide, info, request, snapshot.settings) or decision
    return unless_stale(decision, info, request) if snapshot.is_stale else decision


def ask(
    snapshot: Snapshot,
    request: GpuRequest,
    names: Sequence[str] | None = None,
    deadline: Deadline = NO_DEADLINE,
    *,
    scores: bool = False,
    stores: bool = True,
) -> NodeAnswers:
    """Return the answers of these nodes, or of all nodes; with ``scores``, their scores, too.

    New answers are cached if ``stores`` is True. Questions of people and binds are not cached.
    Raises :class:`.OutOfTimeError` if only an outer deadline has passed.
    """
    names = [info.name for info in snapshot.nodes] if names is None else names
    if snapshot.is_stale and request.required:  # whatever the nodes are like
        return NodeAnswers(request, names, [0] * len(names), {0}, {0: Decision(OUT_OF_DATE)})
    class_ids, faulted = class_ids_of(snapshot, request.resource, names, deadline)
    answers = NodeAnswers(request, names, class_ids, set(class_ids), {})
    failed = _work_out(snapshot, request, answers, deadline, scores=scores, stores=stores)
    if not answers.distinct <= answers.decisions.keys():
        unanswered = [
            (name, class_id)
            for name, class_id in zip(names, class_ids, strict=True)
            if class_id not in answers.decisions and name in snapshot.by_name
        ]
        info = (snapshot.node_info(NodeName(name)) for name, _ in unanswered)
        answers.undecided = {each.name: undecided(each, request) for each in info}
        late = {
            name for name, class_id in unanswered if name not in faulted and class_id not in failed
        }
        answers.late = frozenset(late)
    return answers


def _work_out(
    snapshot: Snapshot,
    request: GpuRequest,
    answers: NodeAnswers,
    deadline: Deadline,
    *,
    scores: bool,
    stores: bool,
) -> set[ClassId]:
    """Fill in the cached answers, and work out the others as far as there is time.

    Returns the equivalence classes for which deciding failed.
    """
    cache, settings, failed = snapshot.answers, snapshot.settings, set[ClassId]()
    weighs = scores and not (snapshot.is_stale and not request.plain)  # else none are compared
    known = [class_id for class_id in answers.distinct if class_id is not None]
    decisions, answers.node_scores = cache.known(
        request, known, snapshot.mix if weighs else None, stores=stores
    )
    passing = sum(decision.rejection is None for decision in decisions.values()) if weighs else 0
    left = len(known) - len(decisions) + passing - len(answers.node_scores)
    # The order is that of the nodes in the question.
    one_of_each = (
        dict(zip(answers.class_ids, answers.names, strict=True))
        if left or snapshot.is_stale
        else {}
    )
    of_each = {s: snapshot.node_info(NodeName(n)) for s, n in one_of_each.items() if s is not None}
    classes = classes_of(snapshot.mix)
    alike: dict[Hashable, Decision] = {}
    found, costs = dict[ClassId, Decision](), dict[ClassId, PlacementCost]()
    try:
        with deadline.ends():
            for class_id, info in of_each.items():
                if class_id not in decisions:
                    interruptible()
                    decision = tried(snapshot, info, _decided, info, request, settings, alike)
                    if decision is None:
                        failed.add(class_id)
                    else:
                        decisions[class_id] = found[class_id] = decision
            for class_id, info in of_each.items() if weighs else ():
                decision = decisions.get(class_id)
                passes = decision is not None and decision.rejection is None
                if decision is not None and passes and class_id not in answers.node_scores:
                    interruptible()
                    cost = tried(snapshot, info, placement_cost, info, request, decision, classes)
                    if cost is not None:
                        costs[class_id] = cost
                        answers.node_scores[class_id] = cost.weighed(snapshot.mix)
    finally:
        if stores and (found or costs):
            cache.put(request, found, costs, classes)
    if snapshot.is_stale:
        decisions = {s: unless_stale(d, of_each[s], request) for s, d in decisions.items()}
    answers.decisions = unless_others_are_sure(settings, request, decisions)
    return failed


def _decided(
    info: NodeInfo, request: GpuRequest, settings: Settings, alike: dict[Hashable, Decision]
) -> Decision:
    """Return the answer of a node.

    Nodes that give the pod the same devices share it in ``alike``.
    """
    choice = info.choice(request)
    decision = None if choice is None else alike.get(choice)
    if decision is None:
        decision = decide(info, request, settings)
        if choice is not None:
            alike[choice] = decision
    return decision


def tried(
    snapshot: Snapshot,
    info: NodeInfo,
    answer: Callable[P, T],
    *args: P.args,
    **named: P.kwargs,
) -> T | None:
    """Return an answer about a node; None if working it out fails."""
    try:
        return answer(*args, **named)
    except Exception as error:  # noqa: BLE001 (a listener logs it)
        snapshot.faults.note(info.name, error)
        return None


def class_ids_of(
    snapshot: Snapshot, resource: str, names: Sequence[str], deadline: Deadline = NO_DEADLINE
) -> tuple[list[ClassId | None], set[str]]:
    """Return the equivalence class of each node, and the nodes for which finding it fails.

    The class is None for these nodes, for unknown nodes, and for nodes that are not reached by the
    deadline. Nodes of one class answer alike.
    """
    faulted = set[str]()
    class_ids = snapshot.classes.class_ids(resource, names, snapshot.generation, snapshot.replaced)
    left: list[int] = []
    if None in class_ids:
        unknown = compress(count(), map(is_, class_ids, repeat(None)))
        left = [i for i in unknown if names[i] in snapshot.by_name]
    for i in left:
        if deadline.passed():
            break
        info = snapshot.by_name[NodeName(names[i])]
        generation = None if info.name in snapshot.replaced else snapshot.generation
        class_id = tried(snapshot, info, _class_id_of, snapshot, info, resource, generation)
        class_ids[i] = class_id
        if class_id is None:
            faulted.add(info.name)
    return class_ids, faulted


def _class_id_of(
    snapshot: Snapshot, info: NodeInfo, resource: str, generation: int | None
) -> ClassId:
    class_id, key = snapshot.classes.enter(info, resource, generation), info.key(resource)
    if class_id is None:  # a class of this snapshot only
        class_id = snapshot.numbers.get(key, -1 - len(snapshot.numbers))
    snapshot.numbers[key] = class_id
    return class_id


def scores(answers: NodeAnswers, rooms: Sequence[int] | None = None) -> list[int]:
    """Return each node's score relative to the others, 0 to 10, in the order asked; 0 if refused.

    A node that is unknown, or has no score yet, is scored as unknown. ``rooms`` are the devices
    left in each node's rack (:func:`.members.rack_rooms`).
    """
    unknown = scoring.UNKNOWN
    rejecting = {each for each, decision in answers.decisions.items() if decision.rejection}
    keys: Sequence[ClassId | _InRack | None] = answers.class_ids
    node_scores: dict[ClassId | _InRack | None, Score] = {
        class_id: unknown if class_id is None else answers.node_scores.get(class_id, unknown)
        for class_id in answers.distinct
    }
    refused: set[ClassId | _InRack | None] = {*rejecting}
    if rooms is not None:
        in_racks = list(zip(answers.class_ids, _levels(answers, rejecting, rooms), strict=True))
        keys, refused = in_racks, {at for at in in_racks if at[0] in rejecting}
        node_scores = {at: replace(node_scores[at[0]], rack=at[1]) for at in {*in_racks}}
    normalized = scoring.normalized_scores(answers.request, {*node_scores.values(), unknown})
    of = {key: 0 if key in refused else normalized[score] for key, score in node_scores.items()}
    by_node = list(map(of.__getitem__, keys))
    if answers.undecided:
        for i, name in enumerate(answers.names):
            if name in answers.undecided and answers.undecided[name].rejection:
                by_node[i] = 0
    return by_node


_InRack = tuple[ClassId | None, int]  # a node's equivalence class, and the level of its rack


def _levels(
    answers: NodeAnswers, rejecting: Collection[ClassId | None], rooms: Sequence[int]
) -> list[int]:
    """Return the level of each node's rack among the racks where it may be placed.

    The level is 0 for a node in no rack, 1 for the fullest rack, and so on. All remaining racks
    share the last level, because scores are too few to tell hundreds of racks apart.
    """
    asked = zip(answers.class_ids, rooms, strict=True)
    passing_racks = {room for class_id, room in asked if room and class_id not in rejecting}
    level = {room: min(i, RACK_LEVELS) for i, room in enumerate(sorted(passing_racks), 1)}
    return [level.get(room, 0) for room in rooms]
