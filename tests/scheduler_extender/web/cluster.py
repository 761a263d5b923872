"""A cluster in which everything occurs that the map has a sign for."""

import random
from dataclasses import replace

from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.report import Allocation, Health, IdleAllocation, Report
from topology.core.requests import NO_CONSTRAINTS, Constraints, gpu_request
from topology.machines import machine

NVLINK = Constraints(link=LinkKind.NVLINK)
KINDS = ("dgx-a100", "dgx1-v100", "a100-pcie-4-bridged", "l40s-4")
STARTED = 1_790_000_000.0


class Building:
    """A cluster, and the nodes and pods that a test puts in."""

    def __init__(self) -> None:
        self.cluster = Cache(lambda: 0.0, Settings(stale_after=None))
        self.cluster.budgets = ()

    def node(self, kind: str, name: str) -> NodeTopology:
        found = machine(kind).topology(name)
        self.report(found, [])
        return found

    def report(
        self,
        node: NodeTopology,
        held: list[tuple[PodRecord, tuple[int, ...]]],
        *,
        sick: tuple[int, ...] = (),
        idle: tuple[PodRecord, ...] = (),
    ) -> None:
        """A report in which these pods hold the GPUs at these positions.

        The ``idle`` ones have not used them for two hours.
        """
        allocations = tuple(
            Allocation(
                pod.uid,
                pod.namespace,
                pod.name,
                "main",
                "nvidia.com/gpu",
                tuple(DeviceId(node.gpus[p].uuid) for p in at),
            )
            for pod, at in held
        )
        health = tuple(
            Health(node.gpus[p].uuid, False, "Xid 79: fell off the bus", "2026-11-20T10:00:00Z")
            for p in sick
        )
        self.sequence = getattr(self, "sequence", 0) + 1
        report = Report("boot", self.sequence, allocations=allocations, health=health)
        if idle:
            unused = (
                IdleAllocation(pod.uid, "main", "nvidia.com/gpu", "2026-11-20T10:00:00Z")
                for pod in idle
            )
            report = replace(report, idle=tuple(unused), observed_at="2026-11-20T12:30:00Z")
        self.cluster.put_record(node, report)

    def pod(
        self,
        name: str,
        count: int,
        node: NodeTopology | None = None,
        constraints: Constraints = NO_CONSTRAINTS,
        namespace: str = "team-a",
        *,
        running: bool = True,
    ) -> PodRecord:
        found = PodRecord(
            PodUid(f"uid-{namespace}-{name}"),
            namespace,
            name,
            node.name if node is not None else None,
            gpu_request(count, constraints),
            phase="Running" if node is not None and running else "Pending",
            called_unschedulable=node is None,
            admitted=node is not None and running,
            started=STARTED if node is not None and running else None,
            promised=constraints if node is not None else NO_CONSTRAINTS,
            created=STARTED,
        )
        self.cluster.put_pod(found)
        return found


def small() -> Building:
    """Nine nodes: pairs kept and broken, stranded and sick GPUs, a pod on its way, a bad record."""
    made = Building()
    a100 = made.node("dgx-a100", "dgx-01")
    quad = made.pod("train-llm", 4, a100, NVLINK)
    one = made.pod("notebook-2", 1, a100, namespace="team-b")
    made.report(a100, [(quad, (0, 1, 2, 3)), (one, (5,))], sick=(7,), idle=(one,))
    v100 = made.node("dgx1-v100", "volta-01")
    pair, wrong = made.pod("pair", 2, v100, NVLINK), made.pod("wrong", 2, v100, NVLINK)
    made.report(v100, [(pair, (0, 3)), (wrong, (1, 7))])
    made.node("dgx1-v100", "volta-02")
    for number in range(1, 4):
        bridged = made.node("a100-pcie-4-bridged", f"bridge-0{number}")
        left = made.pod(f"serve-{number}", 1, bridged)
        made.report(bridged, [(left, (0,))])
    pcie = made.node("l40s-4", "l40s-01")
    leaving = made.pod("leaves", 2, pcie)
    made.report(pcie, [(leaving, (0, 1))])
    made.cluster.put_pod(replace(leaving, terminating=True))
    made.pod("comes", 2, made.node("l40s-4", "l40s-02"), running=False)
    made.cluster.put_problem(NodeName("odd"), "spec.devices: field required")
    for number in range(3):
        made.pod(f"wants-{number}", 8, None, NVLINK)
    made.pod("wants-16", 16)
    return made


def large(nodes: int, seed: int = 1) -> Building:
    """So many nodes, each in a state of its own drawing."""
    made, draw = Building(), random.Random(seed)
    for number in range(nodes):
        name = f"node-{number:05d}.rack-{number // 40}.example"
        node = machine(KINDS[number % len(KINDS)]).topology(name)
        free = list(range(len(node.gpus)))
        draw.shuffle(free)
        held: list[tuple[PodRecord, tuple[int, ...]]] = []
        while free and draw.random() < 0.75:
            count = min(len(free), draw.choice((1, 1, 2, 2, 4)))
            at, free = tuple(sorted(free[:count])), free[count:]
            constraints = NVLINK if count > 1 and draw.random() < 0.7 else NO_CONSTRAINTS
            name = f"pod-{number}-{len(held)}"
            held.append((made.pod(name, count, node, constraints), at))
        sick = (draw.randrange(len(node.gpus)),) if draw.random() < 0.02 else ()
        made.report(node, held, sick=sick)
    for number in range(30):
        made.pod(f"waits-{number}", (2, 4, 8)[number % 3], None, NVLINK)
    return made
