"""What the commands that measure time and memory write."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field

from benchmarks.figures.schema import Count, Figures, Machine, Number


class Measured(Figures):
    """What a file begins with: the command, what it was told, and where it ran."""

    benchmark: str
    parameters: dict[str, Any]
    machine: Machine = Machine()


# latency


class LatencyRow(Figures):
    """One verb in one state, beside a route that does nothing, and one that looks names up."""

    verb: str
    state: str
    nodes: Count
    requests: Count
    p50_ms: Number
    p99_ms: Number
    nothing_p50_ms: Number
    nothing_p99_ms: Number
    lookup_p50_ms: Number
    ratio_p50: Number  # ours to that of the route that does nothing


class Latency(Measured):
    """The whole file of ``latency``."""

    benchmark: Literal["latency"] = "latency"
    rows: tuple[LatencyRow, ...]


# throughput


class ThroughputRow(Figures):
    """One way to run kube-scheduler, in one round."""

    way: str
    round: Count
    pods_per_second: Number  # from the first bound pod to the last
    settled_per_second: Number  # until each pod runs and its node's record says so
    cpu_ms: dict[str, Number]  # for each pod, by process, over the latter time
    # For each pod: what kube-scheduler waited for at our extender, and how long.
    waits_ms: dict[str, Number] = Field(default_factory=dict)
    # Of a hundred pods: how many binds our extender refused, by why.
    refused_binds: dict[str, Number] = Field(default_factory=dict)


class Throughput(Measured):
    """The whole file of ``throughput``."""

    benchmark: Literal["throughput"] = "throughput"
    rows: tuple[ThroughputRow, ...]


# following


class FollowingRow(Figures):
    """filter over all nodes, while nothing happens and during the burst."""

    state: str
    requests: Count
    p50_ms: Number
    p99_ms: Number


class Following(Measured):
    """The whole file of ``following``."""

    benchmark: Literal["following"] = "following"
    ready_s: Number  # from the start of the process
    ready_cpu_s: Number  # what it had used by then
    ready_mib: Number  # its resident memory then
    peak_mib: Number  # the most that it ever was
    burst_cpu_s: Number
    rows: tuple[FollowingRow, ...]


# profile, in milliseconds


class Cost(Figures):
    """A question with every cache empty, and asked again."""

    cold: Number
    warm: Number


class Parts(Figures):
    """The parts of a decision on one machine."""

    outcomes: Cost
    verdict: Cost
    score: Cost


class VerbCost(Figures):
    """A verb over all nodes: caches empty, asked again, weights changed, and a new request."""

    cold: Number
    warm: Number
    weights: Number
    new: Number


class ClusterCost(Figures):
    """Verbs over a cluster, in how many states its nodes are, and the slowest single verdict."""

    filter: VerbCost
    prioritize: VerbCost
    report: Number  # to take in one node's report that has changed
    changed: Number  # filter of that node then; and for a request that no pod has made
    changed_new: Number = Field(serialization_alias="changed, new constraints")
    distinct_states: Count = Field(serialization_alias="distinct states")
    worst_verdict: Number = Field(serialization_alias="worst verdict")


class WakerCost(Figures):
    """Rounds of the waker over pods that wait."""

    waiting: Count  # pods
    changed: Count  # nodes that change before the first round
    requests: Count  # how many different ones the pods have
    changes: Count  # nodes that change before each round after the first
    first: Number
    longest: Number
    last: Number


class PreemptCost(Figures):
    """preempt over so many nodes with victims, in so many states."""

    states: Count
    nodes: Count
    cold: Number
    again: Number


class Profile(Figures):
    """The whole file of ``profile``."""

    nodes: Count
    states: Count
    seed: int
    parts: dict[str, Parts]
    cluster: ClusterCost
    waker: WakerCost
    preempt: tuple[PreemptCost, ...]


# scale


class LargeRun(NamedTuple):
    """How large the one large run is."""

    nodes: int
    pods: int


class ScaleRow(Figures):
    """Milliseconds of CPU per pod: as shipped under two policies, and in the papers' model."""

    nodes: Count
    states: Count
    stock_ms: Number = Field(serialization_alias="MostAllocated_ms")
    ours_ms: Number = Field(serialization_alias="gpu-topology_ms")
    fgd_ms: Number = Field(serialization_alias="FGD_ms")
    damage_ms: Number = Field(serialization_alias="Damage_ms")


class LargeFigures(Figures):
    """The large run as shipped, and the same numbers in the papers' model."""

    nodes: Count
    pods: Count
    placed: Count
    promises: Count
    kept: Count
    cpu_seconds: Number
    wall_seconds: Number
    memory_mib: Count
    protocol_seconds: dict[str, Number]


class Scale(Figures):
    """The whole file of ``scale``."""

    benchmark: Literal["scale"] = "scale"
    parameters: dict[str, Any]
    rows: tuple[ScaleRow, ...]
    large: LargeFigures | None


# worst


class WorstRow(Figures):
    """One pod: how long each verb took, how large its answer was, and whom the verbs held up.

    ``…_cpu_ms`` are the same moments in CPU time that the service itself used: what it is to blame
    for, also on a machine that others keep busy.
    """

    case: str
    filter_ms: Number
    filter_bytes: Count
    passed: Count  # how many nodes filter left
    prioritize_ms: Number
    prioritize_bytes: Count
    preempt_ms: Number
    preempt_bytes: Count
    bind_ms: Number
    bind_bytes: Count
    healthz_ms: Number
    healthz_cpu_ms: Number
    loop_ms: Number  # for how long the event loop was held
    loop_cpu_ms: Number


class Worst(Figures):
    """The whole file of ``worst``."""

    benchmark: Literal["worst"] = "worst"
    nodes: Count
    seed: int
    targets: dict[str, int]  # what is aimed at, in milliseconds
    rows: tuple[WorstRow, ...]


# agent


class AgentCost(Figures):
    """An agent's process with so many GPU pods on its node."""

    pods: Count
    cpu_percent: Number
    memory_mib: Number
    kubelet_calls_per_minute: Number
    api_requests_per_minute: Number


class AgentWrites(Figures):
    """What all agents together write."""

    agents: Count
    pods_per_node_and_hour: Number
    writes_per_second: Number
    writes_per_agent_and_minute: Number
    kib_per_write: Number


class AgentFigures(Measured):
    """The whole file of ``agent``."""

    benchmark: Literal["agent"] = "agent"
    cost: tuple[AgentCost, ...]
    writes: tuple[AgentWrites, ...]
