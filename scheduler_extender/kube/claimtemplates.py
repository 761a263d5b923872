"""The ResourceClaimTemplates of pods that were given a claim at their admission (:mod:`..claims`).

The leader makes each one that a waiting pod names and that is not there, makes it anew where the
machines have other sets of GPUs now, and removes it once no pod names it. Ours bear a label, and a
digest of their sets: others are left alone, whatever they are called.

Where the API server fails at a write it may be a webhook of that namespace: for a while nothing is
written there, and after a few such failures nothing anywhere until the next round, in which what
failed comes last. Where it fails at a list all waits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

import msgspec
import structlog

from scheduler_extender.annotations import PREFIX, Malformed, of_claims
from scheduler_extender.claims import LABEL, WANTED, claim_spec, count_of, template_name
from scheduler_extender.deadline import Deadline, within
from scheduler_extender.ratelimit import LogLimit, RateLimit
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import ENDED
from scheduler_extender.wire import ObjectMeta, Pod
from topology.core.alternatives import Address, MachineKind, alternatives, grouped
from topology.core.devices import PodUid
from topology.core.remembering import Memory
from topology.core.requests import Constraints
from topology.kubeapi.apiserver import (
    ApiError,
    ApiFailure,
    ApiServer,
    ConflictError,
    NotFoundError,
    path,
)
from topology.kubeapi.reflector import decode_list

log = structlog.get_logger(__name__)

GROUP = "/apis/resource.k8s.io/v1"
NAMESPACES = "/api/v1/namespaces"
MANAGER, OURS = "app.kubernetes.io/managed-by", "gpu-topology-extender"
SETS = PREFIX + "sets"  # the annotation with the digest
EVERY = 1.0  # seconds between two rounds
LISTED_FOR = 60.0  # seconds after which namespaces and templates are listed again
EARLY_RATE, EARLY_BURST = 0.2, 4  # lists before that, a second and at once, whoever causes them
AGAIN = 10.0  # seconds after a failure
MACHINES_FOR = 5.0  # seconds between two looks at the machines
# Seconds for which nobody names a template, or its sets are others, before it is removed.
SETTLED = 30.0
MOST, MOST_IN_ALL = 50, 2000  # templates of ours in a namespace, and in all
AT_ONCE = 20  # writes in one round
TOLD_AT_ONCE = 2  # Events in one round
SECONDS = 0.15  # after so long a round works no more sets out
TIMEOUT = 2.0  # seconds for a request
LIST_TIMEOUT, PAGE = 10.0, 100
SERVER_FAILS = 500
MOST_FAILURES = 3  # writes at which the server fails in one round
PASSES = 409, 429  # a quota that others write just now, and a busy API server
# Seconds between two log lines that say the same; lines a second, at once.
PAUSE, RATE, BURST = 3600.0, 0.1, 8

Key = tuple[str, str]  # namespace and name
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Claimant:
    """A pod that names a template. ``wanted`` is what its GPUs have to meet, or why no template is
    made for it; ``waits`` says that it is on no node."""

    uid: PodUid
    namespace: str
    name: str
    template: str
    count: int
    wanted: Constraints | str
    waits: bool


def claimant_of(pod: Pod, managed: tuple[str, ...]) -> Claimant | None:
    """The pod, if its label wants a claim, it has not ended, and it names a template by such a
    name."""
    metadata = pod.metadata
    if (metadata.labels or {}).get(LABEL) != WANTED or pod.status.phase in ENDED:
        return None
    for each in pod.spec.resource_claims or ():
        name = each.resource_claim_template_name or ""
        count = count_of(name)
        if count is not None:
            wanted = _wanted(pod, managed, name, count)
            waits = not pod.spec.node_name and not metadata.deletion_timestamp
            uid = PodUid(metadata.uid)
            return Claimant(uid, metadata.namespace, metadata.name, name, count, wanted, waits)
    return None


def _wanted(pod: Pod, managed: tuple[str, ...], name: str, count: int) -> Constraints | str:
    found = of_claims(pod, managed)
    if isinstance(found, Malformed):
        return found.reason
    if found is None:
        return "no annotation of it requires anything"
    if template_name(count, pod.metadata.annotations or {}) != name:
        return f"{name} is not the name for {count} GPUs with its annotations"
    return found.constraints


class Claimants:
    """The pods that name templates, as the watch on pods shows them. One thread feeds it, another
    reads."""

    def __init__(self, managed: tuple[str, ...]) -> None:
        self._managed = managed
        self._known: dict[PodUid, Claimant] = {}

    def take(self, pod: Pod) -> None:
        """A pod is new or changed."""
        found = claimant_of(pod, self._managed)
        if found is None:
            self.drop(PodUid(pod.metadata.uid))
        else:
            self._known[found.uid] = found

    def drop(self, uid: PodUid) -> None:
        """A pod is gone."""
        self._known.pop(uid, None)

    def keep(self, uids: set[PodUid]) -> None:
        """All pods but these are gone."""
        for uid in self._known.keys() - uids:
            self.drop(uid)

    def by_template(self) -> dict[Key, list[Claimant]]:
        """The pods by the template that they name."""
        found: dict[Key, list[Claimant]] = {}
        for each in self._known.copy().values():
            found.setdefault((each.namespace, each.template), []).append(each)
        return found


@dataclass(frozen=True, slots=True)
class _Template:
    """A template of ours, as the API server has it."""

    uid: str
    digest: str


@dataclass(frozen=True, slots=True)
class _Sets:
    """What a template for some request says now; no addresses where no set can be named."""

    sets: tuple[tuple[Address, ...], ...]
    digest: str


class ClaimTemplates:
    """See the module. :meth:`round` is called by one thread; ``tell`` tells a pod why no template
    is made for it, and never waits. ``clock`` gives the seconds that a round takes."""

    def __init__(
        self,
        cluster: Cluster,
        api: ApiServer,
        claimants: Claimants,
        tell: Callable[[Claimant, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._api = api
        self._claimants = claimants
        self._tell = tell
        self._clock = clock
        self._next = self._listed = self._looked = float("-inf")
        self._own: dict[Key, _Template] = {}
        self._going: set[Key] = set()  # templates of ours that somebody keeps from going
        self._labelled: set[str] = set()  # namespaces
        self._asked: set[str] = set()  # namespaces of which the last list says what there is
        # Since when nobody names a template of ours, or its sets are others.
        self._due: dict[Key, float] = {}
        # What the API server has refused: until when it is not tried again, and why.
        self._refused: dict[Key, tuple[float, str]] = {}
        self._told: dict[PodUid, str] = {}
        self._machines: tuple[MachineKind, ...] = ()
        self._known = Memory[tuple[int, Constraints], _Sets]()
        self._limit = LogLimit(PAUSE, RATE, BURST)
        self._early = RateLimit(1 / EARLY_RATE, EARLY_RATE, EARLY_BURST)
        self._failures = 0  # writes in this round at which the API server failed
        self._failing: set[str] = set()  # namespaces in which it has failed, and not yet succeeded

    def round(self, now: float) -> None:
        """Make and remove what is due. ``now`` in seconds."""
        if now < self._next:
            return
        if now - self._next > AGAIN:
            self._listed = float("-inf")  # another may have led meanwhile
        self._next, self._failures = now + EVERY, 0
        named = _in_turn(self._claimants.by_template(), self._failing)
        try:
            self._list_if_due(named, now)
            if not named and not self._own:
                return
            self._look_at_machines(now)
            deadline = within(self._clock, SECONDS)
            self._tell_all(named, self._make(named, now, deadline))
            self._clear(named, now, deadline)
        except (ApiFailure, msgspec.DecodeError) as error:
            self._next, self._listed = now + AGAIN, float("-inf")
            self._warn(error, now)

    def _warn(self, error: Exception, now: float) -> None:
        if (untold := self._limit.untold(str(error), now)) is not None:
            log.warning("ResourceClaimTemplates cannot be kept", cause=str(error), untold=untold)

    # What there is.

    def _list_if_due(self, named: Mapping[Key, Sequence[Claimant]], now: float) -> None:
        namespaces = {namespace for namespace, _ in named}
        # A namespace without pods, but with templates of ours, may be gone and come back.
        self._asked -= {namespace for namespace, _ in self._own} - namespaces
        unsure = namespaces - self._asked | {key[0] for key in self._going & named.keys()}
        early = (self._early.allows(each, now) for each in sorted(unsure))
        if now - self._listed < LISTED_FOR and not any(early):
            return
        labelled, _ = self._listing(NAMESPACES, f"{LABEL}={WANTED}")
        self._labelled = {each.name for each in labelled}
        kind, ours = "resourceclaimtemplates", f"{MANAGER}={OURS}"
        found, whole = self._listing(f"{GROUP}/{kind}", ours)
        # Whoever may write templates can write thousands that look like ours.
        for namespace in () if whole else sorted(self._labelled & namespaces):
            found += self._listing(path(f"{GROUP}/namespaces", namespace, kind), ours)[0]
        self._own, self._going = {}, set()
        for each in found:
            key, digest = (each.namespace, each.name), (each.annotations or {}).get(SETS)
            if count_of(each.name) is None or digest is None:
                continue
            self._refused.pop(key, None)  # it may have been in its own way
            if each.deletion_timestamp:
                self._going.add(key)
            else:
                self._own[key] = _Template(each.uid, digest)
        self._asked, self._listed = namespaces, now
        self._due = {key: since for key, since in self._due.items() if key in self._own}

    def _listing(self, where: str, labelled: str) -> tuple[list[ObjectMeta], bool]:
        """The metadata of what bears a label, and whether that is all. No page is kept."""
        found: list[ObjectMeta] = []
        following: list[tuple[str, str]] = []
        while True:
            query = [("labelSelector", labelled), ("limit", str(PAGE)), *following]
            page = decode_list(self._api.get(where, query, timeout=LIST_TIMEOUT))
            found += (_decode(each).metadata for each in page.items or ())
            if not page.metadata.continue_:
                return found, True
            if len(found) >= 2 * MOST_IN_ALL:
                return found, False
            following = [("continue", page.metadata.continue_)]

    def _look_at_machines(self, now: float) -> None:
        if now - self._looked < MACHINES_FOR:
            return
        self._looked = now
        nodes = (each for each in self._cluster.snapshot().nodes if each.by_dra)
        machines = grouped(each.topology for each in nodes if each.topology is not None)
        if machines != self._machines:
            self._machines = machines
            self._known.clear()

    def _sets(self, wanted: Claimant, deadline: Deadline) -> _Sets | None:
        """What a template for this pod says now; None where there is no time to work it out."""
        constraints = wanted.wanted
        assert isinstance(constraints, Constraints)  # noqa: S101 (the caller looked)
        request = wanted.count, constraints
        known = self._known.get(request)
        if known is None and not deadline.passed():
            found = alternatives(self._machines, *request).sets
            spec = msgspec.json.encode(claim_spec(sorted(found), wanted.count))
            known = _Sets(found, sha256(spec).hexdigest()[:32])
            self._known.put(request, known)
        return known

    # What is done about it.

    def _make(
        self, named: Mapping[Key, Sequence[Claimant]], now: float, deadline: Deadline
    ) -> dict[Key, str]:
        """Make what is missing; why the others of what waiting pods name are not made."""
        self._refused = {key: why for key, why in self._refused.items() if now < why[0]}
        there, problems, left = Counter(each for each, _ in self._own), dict[Key, str](), AT_ONCE
        everywhere = sum(min(there[namespace], MOST) for namespace in self._labelled)
        sharing = self._labelled & (there.keys() | {namespace for namespace, _ in named})
        for key, pods in named.items():
            right = next((p for p in pods if p.waits and isinstance(p.wanted, Constraints)), None)
            if right is None or key in self._own or key[0] not in self._asked:
                continue
            here = there[key[0]]
            if problem := self._problem(key) or _too_many(key[0], here, everywhere, len(sharing)):
                problems[key] = problem
            elif (sets := self._sets(right, deadline)) is not None:
                if not sets.sets:
                    words = right.wanted.text if isinstance(right.wanted, Constraints) else ""
                    problems[key] = f"no set of {right.count} GPUs with {words} can be named"
                elif left and self._failures < MOST_FAILURES:
                    left -= 1
                    self._create(key, right.count, sets, now)
                    there[key[0]], everywhere = here + 1, everywhere + 1
        return problems

    def _problem(self, key: Key) -> str:
        """Why a template is not made, whatever it says and however many there are; empty if it may
        be."""
        namespace, name = key
        if namespace not in self._labelled:
            return f"the namespace {namespace} has no label {LABEL}={WANTED}"
        if key in self._going:
            return f"the ResourceClaimTemplate {name} is being deleted"
        for refused in (key, (namespace, "")):
            if refused in self._refused:
                return self._refused[refused][1]
        return ""

    def _clear(
        self, named: Mapping[Key, Sequence[Claimant]], now: float, deadline: Deadline
    ) -> None:
        """Remove what no pod names, and make anew what would say something else now."""
        due: dict[Key, tuple[Claimant | None, _Sets | None]] = {}
        for key, template in self._own.items():
            pods = named.get(key, ())
            right = next((p for p in pods if isinstance(p.wanted, Constraints)), None)
            sets = None if right is None else self._sets(right, deadline)
            if right is not None and sets is None:
                continue  # the next round works it out
            kept = sets is None or not sets.sets or sets.digest == template.digest
            if pods and (kept or self._problem(key)):  # else it could not be made again
                self._due.pop(key, None)
            elif now - self._due.setdefault(key, now) >= SETTLED and self._may_write(key):
                due[key] = right, sets
        for key, (right, sets) in list(_in_turn(due, self._failing).items())[:AT_ONCE]:
            gone = self._may_write(key) and self._delete(key, self._own[key], now)
            if gone and right is not None and sets is not None:
                self._create(key, right.count, sets, now)

    def _may_write(self, key: Key) -> bool:
        """Whether the API server has not failed there lately, nor everywhere in this round."""
        return self._failures < MOST_FAILURES and (key[0], "") not in self._refused

    def _fails(self, key: Key, error: ApiFailure, now: float) -> None:
        """The API server fails at a write; it may have been done all the same."""
        why = f"the API server fails: {error}"
        self._refused |= {key: (now + LISTED_FOR, why), (key[0], ""): (now + AGAIN, why)}
        self._failures += 1
        self._failing.add(key[0])
        self._asked.discard(key[0])
        self._warn(error, now)

    def _create(self, key: Key, count: int, sets: _Sets, now: float) -> None:
        namespace, name = key
        metadata = {"name": name, "labels": {MANAGER: OURS}, "annotations": {SETS: sets.digest}}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": metadata,
            "spec": {"spec": claim_spec(sets.sets, count)},
        }
        where = path(f"{GROUP}/namespaces", namespace, "resourceclaimtemplates")
        try:
            made = _decode(self._api.create(where, msgspec.json.encode(body), timeout=TIMEOUT))
        except ApiFailure as error:
            if not isinstance(error, ApiError) or error.status >= SERVER_FAILS:
                self._fails(key, error, now)
                return
            why, wait = f"the API server refuses it: {error.message}", LISTED_FOR
            if error.reason == "AlreadyExists":
                # Another replica may have made it: the next list tells.
                why = f"the ResourceClaimTemplate {name} is not ours, and is left as it is"
                self._asked.discard(namespace)
            elif error.status in PASSES:
                wait = AGAIN
            self._refused[key] = now + wait, why
        else:
            self._own[key] = _Template(made.metadata.uid, sets.digest)
            self._failing.discard(namespace)
            log.info("a ResourceClaimTemplate is made", namespace=namespace, name=name)

    def _delete(self, key: Key, template: _Template, now: float) -> bool:
        """Delete a template, if it is still the one that we know; whether it is deleted. One that
        cannot be deleted is tried again later."""
        namespace, name = key
        where = path(f"{GROUP}/namespaces", namespace, "resourceclaimtemplates", name)
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": template.uid}}
        self._due[key] = now + LISTED_FOR - SETTLED
        try:
            self._api.delete(where, msgspec.json.encode(body), timeout=TIMEOUT)
        except (NotFoundError, ConflictError):
            self._asked.discard(namespace)
        except ApiFailure as error:
            if not isinstance(error, ApiError) or error.status >= SERVER_FAILS:
                self._fails(key, error, now)
            return False
        else:
            self._failing.discard(namespace)
            log.info("a ResourceClaimTemplate is removed", namespace=namespace, name=name)
        del self._own[key], self._due[key]
        return True

    def _tell_all(
        self, named: Mapping[Key, Sequence[Claimant]], problems: Mapping[Key, str]
    ) -> None:
        """Tell waiting pods why there is no template for them, each text once."""
        waiting = {p.uid: (key, p) for key, pods in named.items() for p in pods if p.waits}
        self._told = {uid: text for uid, text in self._told.items() if uid in waiting}
        untold: dict[tuple[str, str], tuple[Claimant, str]] = {}
        for uid, (key, pod) in waiting.items():
            why = pod.wanted if isinstance(pod.wanted, str) else problems.get(key, "")
            if why and key not in self._own and self._told.get(uid) != why:
                untold[pod.namespace, uid] = pod, why
        for pod, why in list(_in_turn(untold).values())[:TOLD_AT_ONCE]:
            self._told[pod.uid] = why
            self._tell(pod, f"no ResourceClaimTemplate is made for it: {why}")


def _too_many(namespace: str, here: int, everywhere: int, sharing: int) -> str:
    """Why there may be no more of ours, with so many in the namespace; empty if there may be.
    Above the bound for all each of the namespaces ``sharing`` it may still have its equal part."""
    if here >= MOST:
        return f"for pods of the namespace {namespace} there are {MOST}, and no more are allowed"
    if everywhere >= MOST_IN_ALL and here >= MOST_IN_ALL // sharing:
        return f"there are {MOST_IN_ALL} in the cluster, and {namespace} has its share of them"
    return ""


def _in_turn(
    each: Mapping[tuple[str, str], V], last: Collection[str] = ()
) -> dict[tuple[str, str], V]:
    """What is the first of each namespace, then the second of each, and so on; at the end the same
    of the namespaces ``last``."""
    before = Counter[str]()

    def turn(key: tuple[str, str]) -> tuple[bool, int]:
        before[key[0]] += 1
        return key[0] in last, before[key[0]]

    return {key: each[key] for key in sorted(each, key=turn)}


class _Named(msgspec.Struct):
    metadata: ObjectMeta


_decode = msgspec.json.Decoder(_Named).decode
