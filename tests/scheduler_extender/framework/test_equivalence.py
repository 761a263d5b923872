"""Nodes on which a pod gets the same devices share an answer, and each would give it by itself."""

import random

import pytest

from scheduler_extender.framework import nodedecision
from scheduler_extender.framework.equivalence import ask
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.framework.rule import NodeEvaluation
from scheduler_extender.framework.rules import RULES, devices
from scheduler_extender.state.answers.decision import Refusals, Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.reservation import value_of
from tests.nodes import pod, record_of
from topology.core.devices import NodeName, PodUid
from topology.core.dra import Claimed, Published, served
from topology.core.links import GBps, LinkKind
from topology.core.placement import Rejection, Verdict
from topology.core.report import READY, Condition, Health, Report
from topology.core.requests import Constraints, Policy, gpu_request
from topology.machines import machine

GPU = "nvidia.com/gpu"
MACHINES = ("dgx1-v100", "hgx-h100-8", "a100-pcie-4-bridged", "l40s-4")
REQUESTS = [
    gpu_request(count, wanted, policy=policy)
    for count in (0, 1, 2, 4, 8)
    for policy in (Policy.REQUIRED, Policy.PREFERRED)
    for wanted in (
        Constraints(),
        Constraints(link=LinkKind.NVLINK),
        Constraints(same_numa=True),
        Constraints(min_bandwidth=GBps(60.0)),
    )
]


def put(cluster: Cache, name: str, rng: random.Random) -> None:
    """A node that publishes its GPUs in an order of its own; claims have some, some are sick."""
    topology = machine(rng.choice(MACHINES)).topology(NodeName(name))
    gpus = list(topology.gpus)
    rng.shuffle(gpus)
    published = [
        Published("pool", f"gpu-{gpu.index}", gpu.uuid, tainted=rng.random() < 0.05) for gpu in gpus
    ]
    held = rng.sample(gpus, rng.randrange(len(gpus) + 1))
    claimed = [
        Claimed("pool", f"gpu-{gpu.index}", PodUid(f"{name}-{gpu.index}"), "default", "p")
        for gpu in held
    ]
    health = [Health(gpu.uuid, healthy=rng.random() < 0.7, reason="Xid") for gpu in gpus]
    unready = (Condition(READY, status=False, reason="Hangs", message="nvidia-smi hangs"),)
    report = Report(
        "boot",
        1,
        health=tuple(health) if rng.random() < 0.3 else (),
        conditions=unready if rng.random() < 0.2 else (),
    )
    cluster.put_record(*served(topology, report, GPU, published, claimed))
    for number in range(rng.choice((0, 0, 1, 2))):  # some are coming, are ending, or keep a place
        uid = PodUid(f"{name}-{number}")
        place = {"reserved": value_of(uid, NodeName(name), cluster.today() + 600, [])}
        asks = rng.choice(({}, {"link": "nvlink"}, {"link": "nvlink", "policy": "preferred"}))
        manifest = pod(
            rng.randint(1, 4),
            {**asks, **rng.choice(({}, {}, place))},
            name=f"p{number}-{name}",
            uid=uid,
            node=None if rng.random() < 0.3 else name,
        )
        if rng.random() < 0.2:
            manifest["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        cluster.put_pod(record_of(manifest))


@pytest.mark.parametrize("seed", range(6))
def test_each_node_answers_as_it_would_by_itself(seed: int) -> None:
    rng = random.Random(seed)
    refusals = rng.choice([Refusals.CERTAIN, Refusals.IGNORE])
    cluster = Cache(lambda: 0.0, Settings(stale_after=None, refusals=refusals))
    names = [f"node-{n}" for n in range(60)]
    for name in names:
        put(cluster, name, rng)
    snapshot = cluster.snapshot()
    shared = 0
    for request in REQUESTS:
        answers = ask(snapshot, request, names, stores=False)
        for name, decision in answers.each():
            info = snapshot.node_info(NodeName(name))
            assert decision == decide(info, request, snapshot.settings), (name, request)
        shared += len(answers.decisions) - len({id(each) for each in answers.decisions.values()})
    assert shared > 100


def test_such_nodes_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that publish their GPUs in two orders, and whose next pair is the same."""
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    kind = machine("dgx1-v100")
    for name, order in {"a": (0, 3, 1, 2, 4, 5, 6, 7), "b": (3, 0, 7, 6, 5, 4, 2, 1)}.items():
        topology = kind.topology(NodeName(name))
        published = [Published("pool", f"gpu-{i}", topology.gpus[i].uuid) for i in order]
        cluster.put_record(*served(topology, Report("boot", 1), GPU, published, []))
    checked: list[str] = []

    def noted(node: NodeEvaluation) -> Rejection | None:
        checked.append(node.info.name)
        return devices.check(node)

    monkeypatch.setattr(nodedecision, "RULES", [noted, *RULES[1:]])
    answers = ask(cluster.snapshot(), gpu_request(2, Constraints(link=LinkKind.NVLINK)), ["a", "b"])
    assert len(answers.distinct) == 2
    assert len(checked) == 1
    verdicts = {each.assessment.verdict for each in answers.decisions.values() if each.assessment}
    assert verdicts == {Verdict.GUARANTEED}
    ask(cluster.snapshot(), gpu_request(3), ["a", "b"])  # of three they give other ones
    assert len(checked) == 3


def test_a_reservation_depends_on_the_free_devices_too() -> None:
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    for name in ("a", "b"):
        topology = machine("dgx1-v100").topology(NodeName(name))
        published = [Published("pool", f"gpu-{g.index}", g.uuid) for g in topology.gpus]
        cluster.put_record(*served(topology, Report("boot", 1), GPU, published, []))
    place = value_of(PodUid("eight"), NodeName("b"), cluster.today() + 600, [])
    cluster.put_pod(record_of(pod(8, {"reserved": place}, name="eight", uid="eight")))
    found = dict(ask(cluster.snapshot(), gpu_request(2), ["a", "b"]).each())
    passes = {name for name, decision in found.items() if decision and decision.rejection is None}
    assert passes == {"a"}
