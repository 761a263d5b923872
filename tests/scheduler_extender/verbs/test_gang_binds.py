"""Members of a gang are bound at one time, and reports come between.

Its scheduler gives up nothing that it has bound: a member that is refused in the middle leaves a
gang that is bound in part. So where only a report is missing, the bind waits for it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from scheduler_extender.deadline import Deadline
from scheduler_extender.framework.rules.gangs import PEERS
from scheduler_extender.groupreference import Group, GroupReference
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import Binding, BindLimiter
from scheduler_extender.verbs.bindlimiter import REPORT
from scheduler_extender.wire import BindingArgs
from tests.deadlines import ending_when
from tests.scheduler_extender.binding import bind_error
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.report import Allocation, Report
from topology.core.requests import Constraints, GpuRequest, gpu_request
from topology.machines import machine

NODE = NodeName("dgx")
PAIR = gpu_request(2, Constraints(link=LinkKind.NVLINK))
GANG = GroupReference(Group("default", "podgroup/g"), 4, gang=True, peers_counted=True)


class Plane:
    """A DGX-1V whose kubelet admits at once and whose agent reports when the test says so."""

    def __init__(self) -> None:
        self.cluster = Cache(lambda: 0.0, Settings(stale_after=None))
        self.cluster.put_record(machine("dgx1-v100").topology(NODE), Report("boot", 1))
        self.limiter = BindLimiter(self.cluster, FOREVER)
        self.given_up = threading.Event()
        self._got: list[Allocation] = []

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        return self.cluster.pod(uid)

    def write(self, binding: Binding) -> None:
        """The pod is bound, admitted and runs, and no report has shown it."""
        found = self.cluster.pod(binding.uid)
        assert found is not None
        self.cluster.put_pod(replace(found, node=binding.node, phase="Running", admitted=True))

    def bind(
        self, name: str, group_ref: GroupReference | None = GANG, asked: GpuRequest = PAIR
    ) -> str:
        """The error of a bind; empty where it was written."""
        pod = PodRecord(PodUid(name), "default", name, None, asked, group_ref=group_ref)
        self.cluster.put_pod(pod)
        args = BindingArgs(name, "default", name, NODE)
        deadline = ending_when(self.given_up.is_set)
        return bind_error(self.cluster, self, args, deadline, self.limiter)

    def unacknowledged(self) -> str:
        """Wait until a pod is bound that no report has shown; its name."""
        found: list[str] = []

        def bound() -> bool:
            shown = {each.pod for each in self._got}
            found[:] = [p.name for p in self.cluster.node_info(NODE).pods.bound.values()]
            found[:] = [name for name in found if name not in shown]
            return bool(found)

        eventually(bound)
        return found[0]

    def report(self, name: str, *got: int) -> None:
        """The agent shows which GPUs a pod has got, beside those of the others."""
        topology = self.cluster.node_info(NODE).topology
        assert topology is not None
        ids = tuple(DeviceId(topology.gpus[p].uuid) for p in got)
        shown = Allocation(PodUid(name), "default", name, "main", "nvidia.com/gpu", ids)
        self._got.append(shown)
        sequence = 1 + len(self._got)
        self.cluster.put_report(NODE, Report("boot", sequence, allocations=tuple(self._got)))

    def end(self, name: str) -> None:
        """A pod has ended, and the agent shows its GPUs free."""
        pod = self.cluster.pod(PodUid(name))
        assert pod is not None
        self.cluster.put_pod(replace(pod, phase="Succeeded"))
        self._got = [each for each in self._got if each.pod != name]
        sequence = 100 + len(self._got)
        self.cluster.put_report(NODE, Report("boot", sequence, allocations=tuple(self._got)))

    def take(self, *held: tuple[str, tuple[int, int]]) -> PodRecord:
        """Pods without a gang run here and are reported; the last of them."""
        for name, pair in held:
            pod = PodRecord(PodUid(name), "default", name, NODE, gpu_request(2), "Running")
            self.cluster.put_pod(pod)
            self.report(name, *pair)
        return pod


@pytest.fixture
def plane() -> Plane:
    return Plane()


def waits(plane: Plane, bind: Future[str]) -> None:
    """The bind has been decided once, and neither refused nor written."""
    eventually(lambda: len(plane.limiter.waiting(REPORT)) == 1 or bind.done())
    assert not bind.done()


def test_a_member_passes_where_it_breaks_nothing_that_a_peer_is_promised(plane: Plane) -> None:
    """Two others had come unacknowledged: one is gone, one leaves. The first sibling may have met
    both, and then gets GPUs of one NUMA node only if the second comes later. So neither is
    bound."""
    for name in "gone", "leaves":
        pod = PodRecord(PodUid(name), "default", name, NODE, gpu_request(4))
        plane.cluster.put_pod(pod)
    plane.cluster.drop_pod(PodUid("gone"))
    plane.cluster.drop_pod(PodUid("leaves"), 20)
    one_numa = gpu_request(2, Constraints(same_numa=True))
    assert plane.bind("first", replace(GANG, size=2), one_numa) == PEERS.message


def test_the_whole_gang_is_bound_however_late_the_reports_are(plane: Plane) -> None:
    with ThreadPoolExecutor(4) as threads:
        binds = [threads.submit(plane.bind, f"p{i}") for i in range(4)]
        try:
            for pair in ((6, 7), (2, 3), (0, 4), (1, 5)):
                plane.report(plane.unacknowledged(), *pair)
            assert [bind.result(PATIENCE) for bind in binds] == [""] * 4
        finally:
            plane.given_up.set()


def test_without_a_report_it_is_refused_once_the_scheduler_has_given_it_up(plane: Plane) -> None:
    assert [plane.bind(f"p{i}") for i in range(3)] == [""] * 3
    with ThreadPoolExecutor(1) as threads:
        bind = threads.submit(plane.bind, "p3")
        waits(plane, bind)
        plane.given_up.set()
        assert bind.result(PATIENCE) != ""


def test_a_member_waits_for_gpus_that_only_the_scheduler_counts_free(plane: Plane) -> None:
    """It has heard that pod a has ended, and we have not: by our count no GPU is left."""
    plane.take(("a", (6, 7)), ("b", (0, 5)), ("c", (1, 2)), ("d", (3, 4)))
    with ThreadPoolExecutor(1) as threads:
        bind = threads.submit(plane.bind, "p0", replace(GANG, size=2))
        try:
            waits(plane, bind)
            plane.end("a")
            assert bind.result(PATIENCE) == ""
        finally:
            plane.given_up.set()


def test_a_pod_of_no_gang_does_not_wait(plane: Plane) -> None:
    errors = [plane.bind(f"p{i}", None) for i in range(4)]
    assert errors[0] == ""
    assert errors[3] != ""


def test_what_no_report_will_mend_is_refused_at_once(plane: Plane) -> None:
    """GPUs 1 to 4 are free and all is reported: nothing is to come."""
    plane.take(("a", (0, 5)), ("b", (6, 7)))
    assert plane.bind("p0") == PEERS.message


def test_a_gang_that_is_bound_in_part_is_not_refused_for_peers() -> None:
    """A sibling that was to run beside p1 has been deleted by force since filter, so that one more
    is to come. GPUs 1 to 4 hold p1 for sure, and not both of them in any order."""
    plane = Plane()
    plane.take(("a", (0, 5)), ("b", (6, 7)))
    elsewhere = PodRecord(PodUid("p3"), "default", "p3", NodeName("x"), PAIR, group_ref=GANG)
    plane.cluster.put_pod(elsewhere)
    assert plane.bind("p1") == ""


class InterruptedLimiter(BindLimiter):
    """Turns in which something happens between the decision and the turn."""

    def __init__(self, cluster: Cache, happens: Callable[[], None]) -> None:
        super().__init__(cluster, FOREVER)
        self.happens = happens

    def wait(self, pod: PodRecord, deadline: Deadline, *, hazards: bool = True) -> bool:
        """It happens, and then it is the pod's turn as ever."""
        self.happens()
        return super().wait(pod, deadline)


def test_a_peer_that_ends_before_its_bind_rejects_no_pod() -> None:
    """GPUs 1 to 4 hold one pair for sure. Who comes for the sibling that has failed is decided
    about beside the member that is in flight."""
    plane = Plane()
    holder = plane.take(("a", (0, 5)), ("b", (6, 7)))
    pair_gang = replace(GANG, size=2)
    peer = PodRecord(PodUid("p0"), "default", "p0", NodeName("x"), PAIR, group_ref=pair_gang)
    plane.cluster.put_pod(peer)

    def fails() -> None:
        plane.cluster.put_pod(replace(peer, phase="Failed"))
        plane.cluster.put_pod(replace(holder, terminating=True))

    plane.limiter = InterruptedLimiter(plane.cluster, fails)
    assert plane.bind("p1", pair_gang) == ""
