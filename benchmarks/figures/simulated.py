"""What ``simulate --json`` writes: parameters of a sweep, its simulations, a row for each policy.

Times are in seconds, bandwidth in GB/s, both ways.
"""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AliasChoices, ConfigDict, Field, StringConstraints, model_validator

from benchmarks.figures.schema import Count, Figures, Interval, Number

MODE = "as shipped"
QUANTILES = tuple(q / 50 for q in range(51))  # of waiting times: 0 to 1 in steps of 0.02

NumberText = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)?(e[+-]?\d+)?$")]


class WorkloadParameters(Figures):
    """Which jobs were played; see :class:`benchmarks.simulation.sources.Workload`."""

    model_config = ConfigDict(extra="forbid")
    source: str
    count: int | None
    demand: str
    pod_gpus: int | None


class SpeedParameters(Figures):
    """What slow links cost; see :class:`benchmarks.simulation.speed.Speed`."""

    model_config = ConfigDict(extra="allow")
    communication: Number
    full: Number
    network: Number


class MoveParameters(Figures):
    """When pods are moved; see :class:`benchmarks.simulation.simulation.Moves`."""

    model_config = ConfigDict(extra="allow")
    after: Number
    cost: Number


class RuleParameters(Figures):
    """How jobs queue, start and run; see :class:`benchmarks.simulation.simulation.Rules`."""

    model_config = ConfigDict(extra="allow")
    left_out = frozenset({"moves"})

    queue: str
    gang: bool
    speed: SpeedParameters
    moves: MoveParameters | None = None


class Parameters(Figures):
    """Every parameter of a sweep, its shard aside: shards of one sweep have equal ones.

    A load of None leaves arrivals as they are.
    """

    model_config = ConfigDict(extra="allow")
    clusters: Annotated[tuple[str, ...], Field(min_length=1)]
    workload: WorkloadParameters
    loads: Annotated[tuple[Number | None, ...], Field(min_length=1)]
    policies: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    rules: RuleParameters
    adds: tuple[str, ...]


class CurvePoint(Figures):
    """The cluster at one arrival, in percent of its GPUs."""

    time: Number | None = None
    arrived: Number  # what has been asked for so far
    allocated: Number
    fragmented: Number  # of the free GPUs
    waiting: Count | None = None  # jobs


# Jobs that fit nowhere even on the empty cluster; earlier files call them ``impossible``.
Unplaceable: TypeAlias = Annotated[
    Count, Field(validation_alias=AliasChoices("unplaceable", "impossible"))
]


class Demand(Figures):
    """What jobs asked for, in words, and how much GPU time that was."""

    ask: str
    jobs: Count
    gpu_hours: Number


class Run(Figures):
    """One simulation. Only the runs of the first seed have curves and demands."""

    left_out = frozenset({"curve", "asks"})

    cluster: str
    load: Number | None
    policy: str
    seed: int
    nodes: Count
    gpus: Count
    cpu_seconds: Number
    jobs: Count
    placed: Count
    unplaceable: Unplaceable
    stuck: Count  # jobs that waited to the end
    asking: Count  # placed jobs with annotations
    kept: Number | None  # the share of these whose GPUs satisfy the annotations
    hop: Number | None  # the mean weakest hop of jobs with more than one GPU
    hop_least_tenth: Number | None
    hops: dict[NumberText, dict[NumberText, Count]]  # such jobs by GPUs and hop
    wait: Number | None
    wait_asking: Number | None
    waits: Annotated[tuple[Number, ...], Field(max_length=len(QUANTILES))]  # by QUANTILES
    completion: Number | None
    completion_several: Number | None
    allocated: Number | None  # percent of GPU time given out until the last arrival
    fragmented: Number | None  # percent, the mean over arrivals
    ended: Number | None = None
    reasons: dict[str, Count] = Field(default_factory=dict)
    refused_by_kubelet: dict[str, Count] = Field(default_factory=dict)
    moved: Count = 0  # pods that were moved
    unblocked: Count = 0  # jobs that they were moved for
    restarted: Count = 0  # moved pods that found no place again
    curve: tuple[CurvePoint, ...] | None = None
    asks: tuple[Demand, ...] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.waits and len(self.waits) != len(QUANTILES):
            raise ValueError(f"waits: {len(QUANTILES)} quantiles are needed, or none")
        return self


class PolicyRow(Figures):
    """One policy on one cluster under one load, over the seeds.

    Jobs are counted over all seeds. The ratios ``…_against_ours`` are taken seed by seed.
    """

    cluster: str
    load: Number | None
    policy: str
    seeds: Count
    jobs: Count
    placed: Count
    unplaceable: Unplaceable
    stuck: Count
    asking: Count
    kept: Interval | None
    hop: Interval | None
    hop_least_tenth: Interval | None
    wait: Interval | None
    wait_asking: Interval | None
    completion: Interval | None
    completion_several: Interval | None
    allocated: Interval | None
    fragmented: Interval | None
    cpu_seconds: Interval | None
    completion_against_ours: Interval | None
    completion_several_against_ours: Interval | None
    wait_against_ours: Interval | None
    moved: Count = 0
    unblocked: Count = 0

    @property
    def never_placed(self) -> int:
        """Jobs that never ran."""
        return self.jobs - self.placed

    def interval(self, name: str) -> Interval | None:
        """One of the intervals by its name."""
        found: Interval | None = getattr(self, name)
        return found


class Simulated(Figures):
    """The whole file."""

    benchmark: Literal["simulate"] = "simulate"
    mode: Literal["as shipped"] = "as shipped"
    parameters: Parameters
    runs: tuple[Run, ...]
    rows: tuple[PolicyRow, ...] = ()
