"""Nodes whose GPUs are held, and pods that are evicted or wait, in a line each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scheduler_extender.evictions import Advice
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.attributes import Amounts, SchedulingAttributes
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.selecting import Requirement
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.report import Allocation, Report
from topology.core.requests import Constraints, GpuRequest, gpu_request

NVLINKED = Constraints(link=LinkKind.NVLINK)


@dataclass(frozen=True, slots=True)
class Held:
    """A running pod with these GPUs, by position; a bare pod where ``controller`` is empty."""

    gpus: tuple[int, ...]
    priority: int = 0
    controller: str = "ReplicaSet"
    constraints: Constraints | None = None
    labels: tuple[tuple[str, str], ...] = ()
    asks: Amounts = ()
    started: float | None = 100.0
    terminating: bool = False


class CountedRequirement(Requirement):
    """A line of a selector that counts how often it is looked at."""

    reads = 0

    def matches(self, labels: Mapping[str, str]) -> bool:
        """As ever."""
        CountedRequirement.reads += 1
        return super().matches(labels)


def cluster_of(nodes: Mapping[NodeTopology, Mapping[str, Held]]) -> Cache:
    """A cluster whose budgets are known, with these pods on these nodes, reported."""
    found = Cache(lambda: 0.0, Settings(stale_after=None))
    found.budgets = ()
    for node, pods in nodes.items():
        held = []
        for name, pod in pods.items():
            request = gpu_request(len(pod.gpus), pod.constraints or Constraints())
            attributes = SchedulingAttributes(pod.priority, pod.labels, pod.controller, pod.asks)
            found.put_pod(
                replace(
                    waiting(name, request, attributes),
                    node=node.name,
                    phase="Running",
                    admitted=True,
                    started=pod.started,
                    terminating=pod.terminating,
                )
            )
            ids = tuple(DeviceId(node.gpus[p].uuid) for p in pod.gpus)
            held.append(Allocation(PodUid(name), "team", name, "main", "nvidia.com/gpu", ids))
        found.put_record(node, Report("boot", 1, allocations=tuple(held)))
    return found


def waiting(
    name: str, request: GpuRequest, attributes: SchedulingAttributes | None = None
) -> PodRecord:
    """A pod that is on no node."""
    return PodRecord(
        PodUid(name), "team", name, None, request, called_unschedulable=True,
        attributes=attributes or SchedulingAttributes(),
    )  # fmt: skip


def singles(*priorities: int) -> dict[str, Held]:
    """A pod with one GPU on each, h0 on the first and so on."""
    return {f"h{i}": Held((i,), priority) for i, priority in enumerate(priorities)}


def names(pods: tuple[PodRecord, ...] | None) -> set[str]:
    """The names of the evicted pods."""
    return {pod.name for pod in pods or ()}


def relocations(found: Advice) -> set[str | None]:
    """Where the victims of a plan go."""
    assert found.plan is not None, found.reason
    return {step.relocation for step in found.plan.steps}


def node_name(text: str) -> NodeName:
    """A node's name."""
    return NodeName(text)
