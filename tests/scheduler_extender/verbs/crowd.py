"""Pods that are bound to nodes all at once, and kubelets that answer when a test says so."""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import Binding, BindLimiter
from scheduler_extender.wire import BindingArgs
from tests.deadlines import ending_when
from tests.nodes import switched
from tests.scheduler_extender.binding import bind_error
from tests.scheduler_extender.serving import Clock
from tests.waiting import FOREVER, PATIENCE
from topology.core.devices import DeviceId, GpuResource, NodeName, PodUid
from topology.core.graph import AllocatorConfig
from topology.core.refusal import Refusal
from topology.core.report import Allocation, Report
from topology.core.requests import GpuRequest, gpu_request

NODE, OTHER = NodeName("switched"), NodeName("other")
ERROR = "UnexpectedAdmissionError"
SINGLE = gpu_request(1)
CONFIG, WHOLE = AllocatorConfig(), GpuResource()


class Crowd:
    """Pods that are bound to nodes all at once, and kubelets that answer when the test says so."""

    def __init__(
        self,
        longest: float = FOREVER,
        settings: Settings = Settings(),
        config: AllocatorConfig = CONFIG,
        served: GpuResource = WHOLE,
    ) -> None:
        self.clock = Clock()
        self.cluster = Cache(self.clock, settings)
        for name in (NODE, OTHER):
            node = replace(switched(16, name), allocator=config, resources=(served,))
            self.cluster.put_record(node, Report("boot", 1))
        self.limiter = BindLimiter(self.cluster, longest)
        self.written: queue.Queue[PodRecord] = queue.Queue()
        self.binds = 0
        self.request = SINGLE
        self.late: Callable[[], bool] = lambda: False
        self._lock = threading.Lock()

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        return self.cluster.pod(uid)

    def write(self, binding: Binding) -> None:
        found = self.cluster.pod(binding.uid)
        assert found is not None
        bound = replace(found, node=binding.node)
        with self._lock:
            self.binds += 1
        self.cluster.put_pod(bound)
        self.written.put(bound)

    def bind(self, uid: str, node: NodeName = NODE, request: GpuRequest | None = None) -> str:
        """The error of a bind; empty where it was written. It asks for :attr:`request`, or for
        another one."""
        pod = PodRecord(PodUid(uid), "default", uid, None, request or self.request)
        self.cluster.put_pod(pod)
        args = BindingArgs(uid, "default", uid, node)
        return bind_error(self.cluster, self, args, ending_when(lambda: self.late()), self.limiter)

    @contextmanager
    def bound(self, *wanted: tuple[int, NodeName]) -> Iterator[list[Future[str]]]:
        """Binds at one time, so many to each node. A test that fails gives them up."""
        names = [(f"{node}-{i}", node) for count, node in wanted for i in range(count)]
        with ThreadPoolExecutor(len(names)) as threads:
            try:
                yield [threads.submit(self.bind, uid, node) for uid, node in names]
            except BaseException:
                self.late = lambda: True
                raise

    def answer(self, *, refused: bool) -> None:
        """The kubelet answers the oldest bind that was written."""
        bound = self.written.get(timeout=PATIENCE)
        if refused:
            bound = replace(bound, phase="Failed", refusal=Refusal(ERROR))
        self.cluster.put_pod(replace(bound, admitted=not refused))

    def admit(self, uid: str, request: GpuRequest = SINGLE, *, refused: bool = False) -> None:
        """A pod comes to the node, and its kubelet answers at once."""
        assert self.bind(uid, request=request) == ""
        self.answer(refused=refused)

    def show(self, pod: PodRecord, *got: int) -> None:
        """A report shows which GPUs of the node a pod has got."""
        topology = self.cluster.node_info(NODE).topology
        assert topology is not None
        ids = tuple(DeviceId(topology.gpus[p].uuid) for p in got)
        shown = Allocation(pod.uid, "default", pod.name, "main", "nvidia.com/gpu", ids)
        self.cluster.put_report(NODE, Report("boot", 3, allocations=(shown,)))

    def flying(self, node: NodeName = NODE) -> int:
        """Assumed pods whose binds are not written."""
        return len(self.cluster.node_info(node).pods.assumed)
