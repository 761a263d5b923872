"""One node whose kubelet answers as a test says, and the extender's state of it."""

from dataclasses import replace

from scheduler_extender.framework.equivalence import answer
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.framework.rule import NodeEvaluation
from scheduler_extender.framework.rules import backoff
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.refusing import NodeRefusal
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import switched
from tests.scheduler_extender.serving import Clock
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.refusal import Refusal
from topology.core.report import Allocation, Report
from topology.core.requests import Exclusive, GpuRequest, gpu_request

GPU = "nvidia.com/gpu"
NODE = NodeName("switched")
ERROR = "UnexpectedAdmissionError"
ASKING = gpu_request(1)
PINNED = replace(ASKING, exclusive=Exclusive.CPUS)
PAIR = gpu_request(2)
SHUT, SHUT_TO_ALIKE = (backoff.refusing(ERROR, alike=alike) for alike in (False, True))


class World:
    """One node whose kubelet answers as the test says, and the extender's state of it."""

    def __init__(self, settings: Settings = Settings()) -> None:
        self.clock = Clock()
        self.cluster = Cache(self.clock, settings)
        self.cluster.put_record(switched(8), Report("boot", 1))
        self.refusals: list[NodeRefusal] = []
        self.cluster.on_refusal.append(self.refusals.append)
        self.sequence = 1

    def bind(self, uid: str, asking: GpuRequest = ASKING) -> PodRecord:
        bound = PodRecord(PodUid(uid), "default", uid, NODE, asking)
        self.cluster.put_pod(bound)
        return bound

    def refuse(self, *uids: str, reason: str = ERROR, asking: GpuRequest = ASKING) -> None:
        for bound in [self.bind(uid, asking) for uid in uids]:
            self.answer(bound, refused=reason)

    def answer(self, bound: PodRecord, refused: str = "", age: float = 0.0) -> None:
        """The kubelet's answer; ``age`` counts where the extender has not seen the pod before."""
        started = 1000.0 + self.clock.now - age
        if refused:
            answered = replace(bound, phase="Failed", refusal=Refusal(refused), started=started)
        else:
            answered = replace(bound, admitted=True, started=started)
        self.cluster.put_pod(answered, age)

    def report(self, *uids: str) -> None:
        self.sequence += 1
        held = tuple(
            Allocation(PodUid(uid), "default", uid, "main", GPU, (DeviceId(f"GPU-{i}"),))
            for i, uid in enumerate(uids)
        )
        self.cluster.put_report(NODE, Report("boot", self.sequence, allocations=held))

    def shut(self, asking: GpuRequest = ASKING) -> bool:
        """Whether the node takes no pod that asks this."""
        self.cluster.expire()
        rejection = answer(self.cluster.snapshot(), self.cluster.node_info(NODE), asking).rejection
        assert rejection in (None, SHUT, SHUT_TO_ALIKE)
        return rejection is not None

    def refuses(self, asking: GpuRequest) -> bool:
        """Whether the node takes no pod that asks this, whatever is free."""
        self.cluster.expire()
        node = NodeEvaluation(self.cluster.node_info(NODE), asking, self.cluster.settings, decide)
        return backoff.check(node) is not None

    def pause(self) -> float:
        """How many seconds the node stays shut if nothing happens."""
        began = self.clock.now
        while self.shut():
            self.clock.now += 1
        return self.clock.now - began
