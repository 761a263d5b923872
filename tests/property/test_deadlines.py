"""The law: no input costs a verb more than its deadline and one step.

Cost is counted in calls of functions, which every machine counts alike. The inputs are among the
worst that the API server accepts: long selectors, many devices, many requests and constraints.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import MANAGED
from scheduler_extender.deadline import Deadline
from scheduler_extender.evictions.search import search
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.pods.record import requesting_record
from scheduler_extender.state.pods.reservation import value_of
from scheduler_extender.verbs import filter_nodes, preempt, prioritize
from scheduler_extender.wire import MetaVictims, Pod, PreemptionArgs
from tests.dranodes import NODE, DraWorld, Json, raw, two_pairs
from tests.scheduler_extender.kube.test_waker import Api
from topology.core.devices import PodUid
from topology.core.memo import forget

# Calls between two looks at the clock: 10 to 20 ms. A selector of 10 KiB is read in one step.
STEP = 100_000
# Calls of one question without a deadline; what needs more is given up, and not asked again.
WHOLE = 2_500_000
OTHER = "vf.example"


class Clock:
    """A clock that goes on by a step at each look, and counts the calls between two of them."""

    def __init__(self, step: float = 1.0) -> None:
        self.step, self.now = step, 0.0
        self.calls = self.most = self.all = 0

    def __call__(self) -> float:
        self.now += self.step
        self._note()
        return self.now

    def _note(self) -> None:
        self.most, self.all, self.calls = max(self.most, self.calls), self.all + self.calls, 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        def call(_frame: object, event: str, _arg: object) -> None:
            self.calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(call)
        try:
            yield
        finally:
            sys.setprofile(before)
            self._note()


def terms(of: str, size: int = 10_000) -> str:
    """A selector of about so many characters that no device meets."""
    each = f'device.attributes["{OTHER}"].id=="{of}"||'
    return each * ((size - 5) // len(each)) + "false"


def wants(*expressions: str, **fields: Any) -> Json:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return {"deviceClassName": "any", "count": 1, "selectors": selectors, **fields}


def long_selectors() -> list[Json]:
    requests = [{"name": f"r{n}", "exactly": wants(terms(f"r{n}"))} for n in range(6)]
    return [{"requests": requests}]


def a_long_selector() -> list[Json]:
    return [{"requests": [{"name": "r", "exactly": wants(terms("r"))}]}]


def many_short_selectors() -> list[Json]:
    text = f'device.attributes["{OTHER}"].id=="%d-%d"'
    return [
        {
            "requests": [
                {
                    "name": f"r{n}",
                    "firstAvailable": [
                        wants(text % (n, place), name=f"a{place}") for place in range(8)
                    ],
                }
                for n in range(32)
            ]
        }
    ]


def many_constraints() -> list[Json]:
    """A pair for each request, of which no two have anything in common."""
    some = [wants(name=f"a{place}", count=2) for place in range(8)]
    requests = [{"name": f"r{n}", "firstAvailable": some} for n in range(15)]
    constraints = [{"matchAttribute": f"{OTHER}/m{n % 20}"} for n in range(32)]
    return [{"requests": requests, "constraints": constraints}]


def many_claims() -> list[Json]:
    """As many constraints as 64 KiB hold, and devices that go together two by two."""
    constraints = [{"matchAttribute": f"{OTHER}/pair"}] * 32
    each = {"requests": [{"name": "r", "exactly": wants(count=2)}], "constraints": constraints}
    return [each] * 24


def many_requests() -> list[Json]:
    one = {"name": "r", "exactly": {"deviceClassName": "any", "count": 1}}
    return [{"requests": [one] * 32}] * 24


CLAIMS = [
    a_long_selector,
    long_selectors,
    many_short_selectors,
    many_constraints,
    many_claims,
    many_requests,
]


def hostile(claims: Callable[[], list[Json]], devices: int, **where: Any) -> tuple[DraWorld, Json]:
    """A node with so many devices of another driver, and a pod with these claims."""
    world = two_pairs()
    world.cluster.budgets = ()
    world.classes.apply(raw({"metadata": {"name": "any"}, "spec": {}}))
    for first in range(0, devices, 125):
        some = [
            {
                "name": f"vf-{n}",
                "attributes": {
                    "id": {"string": f"x{n}"},
                    "pair": {"int": n // 2},
                    **{f"m{k}": {"int": n} for k in range(20)},
                },
            }
            for n in range(first, min(devices, first + 125))
        ]
        pool = {"name": f"vf{first}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": OTHER, "pool": pool, "devices": some, **where}
        world.slices.apply(raw({"metadata": {"name": f"vf{first}"}, "spec": spec}))
    names = []
    for number, asked in enumerate(claims()):
        names.append(f"c{number}")
        meta = {"namespace": "ns", "name": names[-1]}
        world.claims.apply(raw({"metadata": meta, "spec": {"devices": asked}}))
    manifest = {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "p",
            "annotations": {"gpu-topology.io/link": "nvlink"},
        },
        "spec": {
            "resourceClaims": [{"name": n, "resourceClaimName": n} for n in names],
            "containers": [
                {
                    "name": "c",
                    "resources": {
                        "claims": [{"name": n} for n in names],
                        "limits": {"nvidia.com/gpu": "0"},
                    },
                }
            ],
        },
        "status": {"phase": "Pending"},
    }
    PodSink(world.cluster).apply(raw(manifest))
    return world, manifest


def asked(world: DraWorld, manifest: Json) -> dict[str, Callable[[Deadline], object]]:
    """Everything that asks about a pod."""
    pod = msgspec.convert(manifest, Pod)
    record = requesting_record(pod, MANAGED)
    assert record is not None
    assert record.claim_constraints is not None
    cluster = world.cluster
    victims = PreemptionArgs(pod, meta_victims={NODE: MetaVictims()})
    return {
        "filter": lambda deadline: filter_nodes(cluster, pod, [NODE], deadline),
        "prioritize": lambda deadline: prioritize(cluster, pod, [NODE], deadline),
        "preempt": lambda deadline: preempt(cluster, victims, deadline),
        "waker": lambda deadline: evaluate(
            cluster.snapshot(), Question(record, Purpose.WAKE), [NODE], deadline
        ),
        "explain": lambda deadline: answers_to(cluster.snapshot(), record, deadline),
        "unblock": lambda deadline: search(cluster.snapshot(), record, deadline),
    }


HERE, NOWHERE = {"nodeName": NODE}, {"allNodes": True}


@pytest.mark.parametrize("where", [HERE, NOWHERE], ids=["here", "nowhere"])
@pytest.mark.parametrize("claims", CLAIMS, ids=lambda claims: claims.__name__)
def test_a_step_is_short_and_the_whole_is_bounded(
    claims: Callable[[], list[Json]], where: Json
) -> None:
    """What could not be worked out is remembered: who asks again has the answer at once."""
    world, manifest = hostile(claims, 1900, **where)
    forget()
    for number, (name, ask) in enumerate(asked(world, manifest).items()):
        clock = Clock()
        with clock.counting():
            ask(Deadline(clock, 1e9))
        assert clock.most <= STEP, f"{name}: a step of {clock.most} calls"
        most = WHOLE if number == 0 else 2 * STEP
        assert clock.all <= most, f"{name}: {clock.all} calls"


@pytest.mark.parametrize("where", [HERE, NOWHERE], ids=["here", "nowhere"])
def test_nothing_is_worked_out_after_the_deadline(where: Json) -> None:
    world, manifest = hostile(a_long_selector, 40, **where)
    for name, ask in asked(world, manifest).items():
        for looks in (0, 3, 30):
            forget()
            clock = Clock()
            with clock.counting():
                ask(Deadline(clock, looks))
            assert clock.all <= (looks + 1) * STEP, f"{name}: {clock.all} calls"
            assert clock.now <= looks + 20, f"{name}: it looked {clock.now} times"


@pytest.mark.parametrize("where", [HERE, NOWHERE], ids=["here", "nowhere"])
def test_the_waker_and_unblock_have_a_deadline_of_their_own(where: Json) -> None:
    world, manifest = hostile(a_long_selector, 128, **where)
    until = world.cluster.today() + 600
    place = value_of(PodUid("p"), NODE, until, [])
    manifest["metadata"]["annotations"]["gpu-topology.io/reserved"] = place
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    manifest["status"]["conditions"] = [condition]
    slow, fast = Clock(0.05), Clock(1.0)  # a round has 0.15 s, unblock 4 s
    waker = Waker(world.cluster, Api(), clock=slow)
    PodSink(world.cluster).apply(raw(manifest))
    world.speak(2)
    world.cluster.clock = fast
    assert world.cluster.snapshot().reserved_nodes(PodUid("p")) == {NODE}

    def wakes() -> None:
        waker.round(0.0)

    def unblocks() -> None:
        eviction_advice(world.cluster, "ns", "p")

    for work, clock in (wakes, slow), (unblocks, fast):
        forget()
        with clock.counting():
            work()
        assert 3 <= clock.now / clock.step <= 20
        assert clock.all <= 6 * STEP, f"{work.__name__}: {clock.all} calls"
