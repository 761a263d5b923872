"""What must never happen, each as a function from a story to findings."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

from tests.chaos.history import Given, Node, Written
from tests.chaos.story import OVER, REPLICAS, PodStory, Story

GUARANTEED = "guaranteed"
EXPECTED = "expected"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must never happen, and did."""

    check: str
    words: str


def given_twice(story: Story) -> Iterator[str]:
    """A kubelet gives a device to a pod while another one has it."""
    holders: dict[tuple[str, str], str] = {}
    for entry in story.kubelets:
        if not isinstance(entry, Given):
            holders = {key: uid for key, uid in holders.items() if uid != entry.uid}
            continue
        for device in entry.devices:
            other = holders.setdefault((entry.node, device), entry.uid)
            if other != entry.uid:
                yield f"{device} of {entry.node} was given to {entry.uid} while {other} had it"


def overbooked(story: Story) -> Iterator[str]:
    """Pods are bound to a node that ask for more GPUs than it has, at one revision of etcd.

    A pod counts from its bind until etcd has it as ended or gone.
    """
    on: dict[str, dict[str, int]] = defaultdict(dict)
    for version in story.stored:
        pod = story.pods.get(version.uid)
        if pod is None or not version.node:
            continue
        held = on[version.node]
        if version.gone or version.phase in OVER:
            held.pop(version.uid, None)
            continue
        new = version.uid not in held
        held[version.uid] = pod.created.gpus
        has = len(story.nodes[version.node].devices)
        if new and sum(held.values()) > has:
            names = sorted(story.pods[uid].created.name for uid in held)
            yield (
                f"{version.node} has {has} GPUs, and {sum(held.values())} were bound to it at "
                f"revision {version.revision}: {', '.join(names)}"
            )


def turned_away(story: Story) -> Iterator[str]:
    """A kubelet turns a pod away: it was bound where there was no room for it."""
    for pod in story.pods.values():
        if pod.refused is not None:
            yield f"{pod.created.name} on {pod.refused.node}: {pod.refused.reason}"


def _joined(node: Node, devices: list[str]) -> bool:
    pairs = {frozenset(pair) for pair in node.linked}
    return all(frozenset(pair) in pairs for pair in combinations(devices, 2))


def broken_promises(story: Story) -> list[PodStory]:
    """Pods that require links and got a set of GPUs that is not joined, whatever the verdict."""
    return [
        pod
        for pod in story.pods.values()
        if pod.created.linked
        and pod.given is not None
        and not _joined(story.nodes[pod.given.node], pod.given.devices)
    ]


def promise_broken(story: Story) -> Iterator[str]:
    """What was called guaranteed did not hold."""
    for pod in broken_promises(story):
        if pod.verdict == GUARANTEED and pod.given is not None:
            yield f"{pod.created.name} got {', '.join(pod.given.devices)} on {pod.given.node}"


def expectation_broken(story: Story) -> Iterator[str]:
    """What was called expected did not hold, though no pod of the node had ended unknown to the
    extender before this one was admitted: only that excuses it.

    A replica binds a pod in the version that its watch has shown. So it knew of every pod that had
    ended in etcd by that revision.
    """
    versions = {w.uid: int(w.version) for w in story.writes if _is_done(w) and w.version}
    released = {e.uid: at for at, e in enumerate(story.kubelets) if not isinstance(e, Given)}
    given = {e.uid: at for at, e in enumerate(story.kubelets) if isinstance(e, Given)}
    for pod in broken_promises(story):
        uid = pod.created.uid
        if pod.verdict != EXPECTED or pod.given is None or uid not in versions:
            continue
        ended = [
            other
            for other in story.pods.values()
            if other.given is not None
            and other.given.node == pod.given.node
            and released.get(other.created.uid, len(story.kubelets)) < given[uid]
        ]
        if all((other.over_since or versions[uid] + 1) <= versions[uid] for other in ended):
            yield f"{pod.created.name} got {', '.join(pod.given.devices)} on {pod.given.node}"


def _is_done(write: Written) -> bool:
    return write.kind == "bind" and 200 <= write.code < 300


def bound_without_promise(story: Story) -> Iterator[str]:
    """A pod that requires links is bound without a promise of them."""
    for pod in story.pods.values():
        if not pod.created.linked or pod.bind is None:
            continue
        if pod.verdict not in (GUARANTEED, EXPECTED):
            yield f"{pod.created.name} on {pod.bind.node}: {pod.verdict or 'no verdict'}"


def lost(story: Story) -> Iterator[str]:
    """A pod that was created is neither over, nor with its kubelet, nor pending."""
    for pod in story.pods.values():
        name = pod.created.name
        if pod.last is None:
            yield f"{name} was created, and etcd has never had it"
        elif pod.last.gone and not pod.removed:
            yield f"{name} is gone, and nobody has deleted it"
        elif not pod.over and pod.bind is not None and pod.given is None:
            yield f"{name} is bound to {pod.bind.node}, whose kubelet does not know it"


def answered_in_vain(story: Story) -> Iterator[str]:
    """A bind was called done, and etcd does not have it."""
    for answer in story.answers:
        if answer.verb != "bind" or answer.code != 200 or answer.error:
            continue
        pod = story.pods.get(answer.uid)
        if pod is not None and (pod.bind is None or pod.bind.node != answer.node):
            where = pod.bind.node if pod.bind is not None else "no node"
            yield f"{pod.created.name}: done for {answer.node}, and it is on {where}"


def waits_though_it_fits(story: Story) -> Iterator[str]:
    """A pod is pending at the end though a node surely has room for it.

    Surely: it has as many free GPUs, and where links are required every set of so many of them is
    joined. Whoever knows the device plugin's choice could tell of more nodes; the device plugin is
    not modelled here.
    """
    free = free_at_end(story)
    for pod in story.pods.values():
        if pod.over or pod.bind is not None or pod.last is None:
            continue
        for name, devices in free.items():
            if fits(story.nodes[name], devices, pod.created.gpus, linked=pod.created.linked):
                yield f"{pod.created.name} ({pod.created.gpus} GPUs) fits on {name}"
                break


def free_at_end(story: Story) -> dict[str, list[str]]:
    """The devices of each node that no pod has at the end. A node with a pod that its kubelet has
    not answered has none that can be counted on."""
    taken: dict[str, set[str]] = defaultdict(set)
    for pod in story.pods.values():
        if pod.over or pod.bind is None:
            continue
        node = story.nodes[pod.bind.node]
        taken[node.name] |= set(pod.given.devices if pod.given is not None else node.devices)
    return {
        name: [device for device in node.devices if device not in taken[name]]
        for name, node in story.nodes.items()
    }


def fits(node: Node, free: list[str], gpus: int, *, linked: bool) -> bool:
    """Whether so many GPUs are free, and joined whichever are taken."""
    if len(free) < gpus:
        return False
    return not linked or gpus < 2 or _joined(node, free)


def bound_by_deposed(story: Story) -> Iterator[str]:
    """A bind of one replica comes after another one's later term has begun.

    It has begun at the latest with the mark that all pods are fenced, or with its first bind. All
    is in etcd's order. A replica's term at a bind is the highest that it has marked before.
    """
    marks = _marks(story)
    writers = writers_of(story)
    begun: list[tuple[int, str]] = []
    fences = [(m.revision, m.term, m.source) for m in marks if m.fenced]
    for bind in story.binds:
        source = writers.get(bind.uid)
        if source is None:
            continue
        own = [m.term for m in marks if m.source == source and m.revision < bind.revision]
        if not own:
            yield f"{bind.name} was bound at revision {bind.revision} by {source}, who never led"
            continue
        term = max(own)
        later = [t for t, other in begun if t > term and other != source]
        later += [t for at, t, other in fences if at < bind.revision and t > term]
        if later:
            yield (
                f"{bind.name} was bound to {bind.node} at revision {bind.revision} by {source} of "
                f"term {term}, when term {max(later)} had begun"
            )
        begun.append((term, source))


@dataclass(frozen=True, slots=True)
class _Mark:
    revision: int
    term: int
    source: str
    fenced: bool


def _marks(story: Story) -> list[_Mark]:
    """The marks of terms, in etcd's order, each with the process that wrote it."""
    sources = {write.mark: write.source for write in story.writes if write.kind == "mark"}
    found, known = [], set()
    for version in story.stored:
        mark = version.mark
        if version.namespace != REPLICAS or not mark or mark in known:
            continue
        known.add(mark)
        term, _, rest = mark.partition(" ")
        if mark in sources:
            fenced = rest.endswith(" fenced")
            found.append(_Mark(version.revision, int(term), sources[mark], fenced))
    return found


def writers_of(story: Story) -> dict[str, str]:
    """The process that bound each pod, by pod UID, where the history shows it."""
    tries: dict[str, list[Written]] = defaultdict(list)
    for write in story.writes:
        if write.kind == "bind":
            # One that was not answered does not say which pod of this name it was for.
            tries[write.uid or write.name].append(write)
    found = {}
    for uid, pod in story.pods.items():
        tried = [*tries[uid], *tries[pod.created.name]]
        done = {write.source for write in tried if 200 <= write.code < 300}
        unknown = {write.source for write in tried if write.code == 0 or write.code >= 500}
        if len(one := done or unknown) == 1:
            (found[uid],) = one
    return found


def unattributed(story: Story) -> int:
    """The number of binds whose process is unknown."""
    writers = writers_of(story)
    return sum(bind.uid not in writers for bind in story.binds)


CHECKS: tuple[Callable[[Story], Iterator[str]], ...] = (
    given_twice,
    overbooked,
    turned_away,
    promise_broken,
    expectation_broken,
    bound_without_promise,
    lost,
    answered_in_vain,
    waits_though_it_fits,
    bound_by_deposed,
)


def findings(story: Story) -> list[Finding]:
    """Everything that must never happen and did, check by check."""
    return [
        Finding(check.__name__.replace("_", " "), words)
        for check in CHECKS
        for words in check(story)
    ]
