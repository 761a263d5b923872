"""A history played in both worlds at once: the real managers, and what the extender says of them.

The extender's side is its own state (``Cache`` of ``scheduler_extender.state``), fed with
records as our agent would write them, and its own decisions. At each admission the real answer is
compared with the prediction made just before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from scheduler_extender.annotations import PodRequest, parse
from scheduler_extender.files.clusterfile import read_pod
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.state.answers.decision import Refusals, Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from tests.differential.histories import History, manifest
from tests.differential.managers import Json, Managers
from tests.differential.nodes import RESOURCE, family, has_static_managers, record
from tests.differential.podentries import reserved_cpus, status_of
from topology import codec
from topology.core.admission import device_manager_of
from topology.core.availability import Unacknowledged
from topology.core.devices import NodeName, PodUid
from topology.core.devicesets import gpus
from topology.core.graph import NodeTopology
from topology.core.placement import Rejection, Verdict, predicted, satisfies
from topology.core.placement.podoutcomes import PodOutcomes, pod_outcomes
from topology.core.requests import NO_CONSTRAINTS, Role, device_count

NODE = NodeName("node")

# A pod got devices that it could not get, or was refused where no refusal was foreseen.
OUTSIDE = "outside the prediction"
BROKEN = "promise broken"  # a pod got devices that do not satisfy what it was promised
REFUSED = "promise refused"  # a pod with a promise was refused


@dataclass(frozen=True, slots=True)
class Counterexample:
    """One admission in which reality was not what we said."""

    kind: str
    pod: str
    step: int
    said: str
    was: str
    # Whether a restart or a change of health lay between bind and admission: no report can have
    # shown it yet.
    unacknowledged: bool


@dataclass(slots=True)
class Played:
    """The result of a history: admissions, and how well they were predicted."""

    family: str
    admissions: int = 0
    promised: int = 0
    decided: int = 0  # Admissions of which it was sure that they come about, or that they do not
    single: int = 0  # Admissions for which one outcome alone was foreseen
    found: list[Counterexample] = field(default_factory=list)


@dataclass(slots=True)
class _Bound:
    spec: Json
    record: PodRecord
    verdict: Verdict | None
    unacknowledged: bool = False  # See `Counterexample`


class Play:
    """One history, step by step."""

    def __init__(self, history: History, managers: Managers) -> None:
        self._node = history["node"]
        self._steps = history["steps"]
        self._managers = managers
        self._cluster = Cache(lambda: 0.0, Settings(stale_after=None))
        self._sequence = 0
        self._version = 0
        self._waiting: dict[str, _Bound] = {}
        self._admitted: dict[str, _Bound] = {}
        self._late: list[PodRecord] = []  # pods that have ended and of which we have not heard
        self._registered = True
        self._unseen = False  # whether something has changed that only the next report can show
        self._amounts = _room(self._node)
        self.played = Played(family(self._node))

    def run(self) -> Played:
        """Play all steps."""
        self._managers.begin(self._node)
        self._report()
        for at, step in enumerate(self._steps):
            getattr(self, f"_{step['do']}")(at, step)
        return self.played

    # The steps.

    def _report(self, at: int = 0, step: Json | None = None) -> None:
        for gone in self._late:
            self._cluster.put_pod(replace(gone, phase="Succeeded"))
        self._late.clear()
        shown = self._managers.ask(do="look")
        self._unseen = not self._registered
        self._sequence += 1
        static = has_static_managers(self._node)
        if static:
            self._node["reservedCpus"] = reserved_cpus(self._node, shown)
        status = status_of(shown, self._sequence, static=static)
        decoded = codec.decode(record(self._node, status))
        self._cluster.put_record(decoded.topology, decoded.report)

    def _bind(self, at: int, step: Json) -> None:
        spec = step["pod"]
        if not self._registered or not self._takes(spec):
            return
        asks = parse(read_pod(manifest(spec)))
        if not isinstance(asks, PodRequest):
            return
        request = asks.request
        decision = decide(self._info, request, Settings(refusals=Refusals.IGNORE))
        if decision.rejection is not None or decision.assessment is None:
            return
        verdict = decision.assessment.verdict
        promised = verdict.holds and request.required
        bound = PodRecord(
            PodUid(spec["uid"]),
            "default",
            spec["name"],
            NODE,
            request,
            promised=request.constraints if promised else NO_CONSTRAINTS,
            survives_endings=promised and verdict is Verdict.GUARANTEED,
        )
        self._cluster.put_pod(bound)
        for other in self._waiting.values():
            if other.record.promised == NO_CONSTRAINTS:
                other.verdict = None  # nobody watches over what a plain pod was foreseen
        kept = verdict if promised or request.plain else None
        if kept is Verdict.EXPECTED and self._late:
            kept = None  # a running pod has ended, and we have not heard of it
        self._waiting[spec["uid"]] = _Bound(spec, bound, kept, self._unseen)

    def _admit(self, at: int, step: Json) -> None:
        bound = self._waiting.pop(step["uid"], None)
        if bound is None:
            return
        predicted = self._predicted(bound)
        calm = not self._late and not self._unseen and not bound.unacknowledged
        ends = [e for e in step.get("ends", ()) if e["uid"] in self._admitted]
        answer = self._managers.ask(do="admit", pod=_plain(bound.spec), ends=ends)
        if ends and bound.verdict is Verdict.EXPECTED:
            bound.verdict = None
        for ending in ends:  # at the latest now: the moment may never have come
            self._managers.ask(do="end", uid=ending["uid"])
            self._note_end(ending["uid"], seen=False)
        self.played.admissions += 1
        if predicted is not None:
            self._compare(at, bound, predicted, answer, calm=calm and not ends)
        if answer.get("admitted"):
            self._admitted[step["uid"]] = bound
        else:
            self._give_back(bound.spec)
            self._cluster.put_pod(replace(bound.record, phase="Failed"))

    def _end(self, at: int, step: Json) -> None:
        if step["uid"] in self._admitted:
            self._managers.ask(do="end", uid=step["uid"])
            self._note_end(step["uid"], seen=step["seen"])

    def _note_end(self, uid: str, *, seen: bool) -> None:
        bound = self._admitted.pop(uid, None)
        if bound is None:
            return
        self._give_back(bound.spec)
        if seen:
            self._cluster.put_pod(replace(bound.record, phase="Succeeded"))
        else:
            self._late.append(bound.record)
        for other in self._waiting.values():
            if other.verdict is Verdict.EXPECTED:
                other.verdict = None  # it was to hold only unless a running pod ends

    def _health(self, at: int, step: Json) -> None:
        if self._registered:
            self._managers.ask(do="health", sick=step["sick"])
            self._window()

    def _restart(self, at: int, step: Json) -> None:
        alive = list(self._admitted)
        answer = self._managers.ask(do="restart", order=alive, alive=alive)
        for uid, found in (answer.get("readmitted") or {}).items():
            if not found.get("admitted"):
                self._note_end(uid, seen=True)
        self._registered = False
        self._window()

    def _register(self, at: int, step: Json) -> None:
        if not self._registered:
            self._managers.ask(do="register")
            self._registered = True

    # Beside the steps.

    def _window(self) -> None:
        self._unseen = True
        for bound in self._waiting.values():
            bound.unacknowledged = True

    @property
    def _info(self) -> NodeInfo:
        (info,) = self._cluster.snapshot().nodes
        return info

    def _predicted(self, bound: _Bound) -> _Predicted | None:
        """What may come of the pod, for all we know now; None where no ledger can be made."""
        offer = self._info.last_offer(RESOURCE)
        if isinstance(offer, Rejection):
            return None
        pending = offer.ledger.unacknowledged[bound.record.uid]
        others = list(offer.availability.unacknowledged)
        others.remove(pending)
        now = replace(offer.availability, unacknowledged=tuple(others))
        kubelet = device_manager_of(offer.topology, offer.resource)
        sets, hazards = predicted(kubelet, now, pending)
        if pending.opaque:  # there is no telling what it gets, but how it may be refused
            key = now.outcome_key(endings=True, exclusive=pending.exclusive)
            one = pod_outcomes(
                kubelet,
                key,
                pending.counts,
                pending.only_gpu_plugin,
                pending.exclusive,
                endings=True,
            )
            hazards = tuple(sorted({*hazards, *one.hazards}))
        key = now.outcome_key(endings=False, exclusive=pending.exclusive)
        narrow = pod_outcomes(
            kubelet, key, pending.counts, pending.only_gpu_plugin, pending.exclusive
        )
        return _Predicted(sets, hazards, narrow, offer.topology, kubelet.width, pending)

    def _compare(
        self, at: int, bound: _Bound, predicted: _Predicted, answer: Json, *, calm: bool
    ) -> None:
        """Compare the real answer with the prediction; ``calm``: no pod has ended unnoticed."""
        played = self.played
        admitted = bool(answer.get("admitted"))
        reason = f"{answer.get('reason')}: {answer.get('message')}"
        sets, hazards = predicted.sets, predicted.hazards
        got = 0
        if admitted:
            got = self._pool(bound, answer, predicted)
            was = f"admitted with {got:b}"
            inside = sets is None or got in sets
        else:
            was = f"refused, {reason}"
            inside = bool(hazards)
        message = f"{'any' if sets is None else [f'{s:b}' for s in sets[:8]]}, hazards {hazards}"

        def note(kind: str) -> None:
            played.found.append(
                Counterexample(kind, bound.spec["uid"], at, message, was, bound.unacknowledged)
            )

        if not inside:
            note(OUTSIDE)
        narrow = predicted.narrow
        if calm and narrow.sets is not None:
            message = f"if nothing ends {[f'{s:b}' for s in narrow.sets[:8]]}, {narrow.hazards}"
            if (got not in narrow.sets) if admitted else not narrow.hazards:
                note(OUTSIDE)
        if narrow.sets is not None:
            sure = not narrow.hazards or not narrow.sets
            played.decided += sure and narrow.exact
            played.single += sure and len(narrow.sets) <= 1
        if bound.verdict is None or not bound.verdict.holds:
            return
        played.promised += 1
        message = f"{bound.verdict.value}; {message}"
        if not admitted:
            note(REFUSED)
        elif not satisfies(
            predicted.topology.shape, bound.record.promised, gpus(got, predicted.width)
        ):
            note(BROKEN)

    def _pool(self, bound: _Bound, answer: Json, predicted: _Predicted) -> int:
        """The devices of app and sidecar containers, counted by GPU."""
        ordinary = {c["name"] for c in bound.spec.get("init", ()) if not c.get("sidecar")}
        found = 0
        for name, ids in answer["devices"].items():
            if name not in ordinary:
                for device in ids or ():
                    position = int(device.removeprefix("GPU-").partition("::")[0])
                    found += 1 << position * predicted.width
        return found

    def _takes(self, spec: Json) -> bool:
        """Whether CPUs and memory suffice, as kube-scheduler sees to it; they are counted then."""
        cpus, memory = _asked(spec)
        if cpus > self._amounts[0] or memory > self._amounts[1]:
            return False
        self._amounts = self._amounts[0] - cpus, self._amounts[1] - memory
        return True

    def _give_back(self, spec: Json) -> None:
        cpus, memory = _asked(spec)
        self._amounts = self._amounts[0] + cpus, self._amounts[1] + memory


@dataclass(frozen=True, slots=True)
class _Predicted:
    sets: tuple[int, ...] | None
    hazards: tuple[str, ...]
    narrow: PodOutcomes  # what may come of it if no running pod ends
    topology: NodeTopology
    width: int
    pending: Unacknowledged


def _plain(spec: Json) -> Json:
    return {key: value for key, value in spec.items() if key != "wish"}


def _room(node: Json) -> tuple[int, int]:
    """CPUs and GiB that pods may have, thousandths of CPUs."""
    cpus = sum(len(threads) for numa in node["numa"] for threads in numa["cores"])
    reserved = int(node["cpuManager"].get("reserved", "0"))
    return 1000 * (cpus - reserved), 15 * len(node["numa"])


def _asked(spec: Json) -> tuple[int, int]:
    """What kube-scheduler counts: thousandths of CPUs, and GiB."""
    init = [(Role.SIDECAR if c.get("sidecar") else Role.INIT, c) for c in spec.get("init", ())]
    containers = [*init, *((Role.APP, c) for c in spec["containers"])]
    return (
        device_count(tuple((role, _thousandths(c["limits"])) for role, c in containers)),
        device_count(tuple((role, _gibs(c["limits"])) for role, c in containers)),
    )


def _thousandths(limits: Json) -> int:
    amount = limits.get("cpu", "0")
    return int(amount[:-1]) if amount.endswith("m") else 1000 * int(amount)


def _gibs(limits: Json) -> int:
    return int(limits.get("memory", "0Gi").removesuffix("Gi"))


def play(history: History, managers: Managers) -> Played:
    """Play a history."""
    return Play(history, managers).run()
