"""Which CPUs and which memory of a node are left, by what its report shows and its pods ask."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import MANAGED
from scheduler_extender.state.node.ledger import ledger
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.transitions import with_pod, with_record
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.wire import Pod
from tests.nodes import container, offered, pod, record_of, switched
from topology.core.availability import Availability
from topology.core.devices import DeviceId, PodUid
from topology.core.graph import AllocatorConfig
from topology.core.numa import Holding, MemoryBlock, NumaConfig, NumaNode, cpu_set
from topology.core.numaresources import FreeNumaResources, emptied
from topology.core.report import Allocation, Report

GPU = "nvidia.com/gpu"
GIB = 1 << 30
NAME = "train"  # of every pod here
SOCKETS = ((0, "0-7"), (1, "8-15"))
NUMA = NumaConfig(
    tuple(NumaNode(cpu_set(cpus), i, (("memory", 64 * GIB),)) for i, cpus in SOCKETS),
    allocatable=cpu_set("1-15"),
    whole_cores=cpu_set("2-15"),
    threads=2,
)
NODE = replace(
    switched(name="node"),
    allocator=AllocatorConfig(
        "any", None, "single-numa-node", cpu_manager_policy="static", numa=NUMA
    ),
)
EMPTY = emptied(NUMA)


def guaranteed(name: str, count: int, cpus: str, memory: str = "1Gi") -> dict[str, Any]:
    """A container of a pod of the class Guaranteed."""
    found = container(name, count)
    found["resources"]["limits"] |= {"cpu": cpus, "memory": memory}
    found["resources"]["requests"] = found["resources"]["limits"]
    return found


def record(*containers: dict[str, Any], **more: Any) -> PodRecord:
    found = pod_record(
        msgspec.convert(pod(containers=list(containers), node="node", **more), Pod), MANAGED
    )
    assert found is not None
    return found


def numa_free(
    holdings: tuple[Holding, ...] | None, *pods: PodRecord, shown: str = ""
) -> FreeNumaResources | None:
    """The room of the node; the report shows one GPU of the pod named ``shown``."""
    allocations: tuple[Allocation, ...] = ()
    if shown:
        ids = (DeviceId("GPU-0"),)
        allocations = (Allocation(PodUid("uid-1"), "default", shown, "main", GPU, ids),)
    report = Report(allocations=allocations, holdings=holdings)
    return ledger(NODE, report, pods, GPU).availability.numa_free


def held(name: str, cpus: str, *memory: MemoryBlock) -> Holding:
    return Holding("default", name, cpu_set(cpus), memory)


def test_unseen_resources_are_not_free() -> None:
    assert numa_free(None) is None
    assert numa_free(()) == EMPTY
    assert ledger(switched(), Report(holdings=()), (), GPU).availability.numa_free is None


def test_what_pods_show_is_theirs_whether_they_have_gpus_or_not() -> None:
    found = numa_free(
        (held("cpus-only", "2-3"), held(NAME, "8-9", MemoryBlock("memory", GIB, (1,))))
    )
    assert found == replace(
        EMPTY, free=(5, 6), whole=10, blocks=(MemoryBlock("memory", GIB, (1,)),)
    )


@pytest.mark.parametrize("how", ["ended", "deleting", "unknown", "running"])
def test_what_may_be_released_may_come_back(how: str) -> None:
    pods: tuple[PodRecord, ...] = ()
    if how != "unknown":
        one = record(guaranteed("main", 1, "2"))
        changed = {
            "ended": replace(one, phase="Failed"),
            "deleting": replace(one, terminating=True),
            "running": replace(one, phase="Running"),
        }
        pods = (changed[how],)
    found = numa_free((held(NAME, "2-3"),), *pods, shown=NAME)
    assert found is not None
    assert (found.free, found.whole) == ((5, 8), 12)
    back = () if how == "running" else (2, 0)
    assert (found.back, found.whole_back) == (back or (0, 0), sum(back))


@pytest.mark.parametrize("phase", ["Failed", "Running"])
def test_an_ended_pod_whose_cpus_alone_are_shown_may_release_them(phase: str) -> None:
    """The kubelet has let go of its GPUs and not of its CPUs, or was asked for these earlier."""
    one = record(guaranteed("main", 1, "2"), phase=phase)
    info = with_record(NodeInfo(NODE.name), NODE, Report(holdings=(held(NAME, "2-3"),)), "")
    available = offered(with_pod(info, one)).availability
    assert isinstance(available, Availability)
    assert available.numa_free is not None
    assert available.numa_free.free == (5, 8)
    assert available.numa_free.back == ((2, 0) if one.ended else (0, 0))


def test_a_bound_pod_that_is_not_shown_takes_its_part_later() -> None:
    now = ledger(NODE, Report(holdings=()), (record(guaranteed("main", 1, "2")),), GPU)
    assert now.availability.numa_free == EMPTY
    (waiting,) = now.availability.unacknowledged
    assert waiting.exclusive.most_cpus == 2
    assert EMPTY.beside(waiting.exclusive).taken == 2


def test_a_running_pod_that_is_missing_holds_cpus_that_we_do_not_know() -> None:
    found = numa_free((), record(guaranteed("main", 1, "2"), phase="Running"))
    assert found is not None
    assert (found.taken, dict(found.taken_memory)) == (2, {"memory": GIB})


def test_what_init_containers_hold_shows_in_no_report() -> None:
    manifest = pod(containers=[guaranteed("main", 1, "2")], node="node", phase="Running")
    manifest["spec"]["initContainers"] = [guaranteed("first", 0, "6")]
    found = numa_free((held(NAME, "2-3"),), record_of(manifest), shown=NAME)
    assert found is not None
    assert found.taken == 6


def test_a_pod_with_unknown_amounts_may_have_any_resources() -> None:
    manifest = pod(containers=[guaranteed("main", 1, "2")], node="node", phase="Running")
    manifest["spec"]["resources"] = {"limits": {"cpu": "2"}}
    found = numa_free((), record_of(manifest))
    assert found is not None
    assert (found.least(0b11), found.memory_unknown) == (0, True)
