"""What ``compare --json`` writes: GPUs given out in the papers' model, in percent of all."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from benchmarks.figures.schema import Count, Figures, Number


class ComparisonParameters(Figures):
    """What was compared; the seeds are names of shared orders of arrivals."""

    model_config = ConfigDict(extra="allow")
    left_out = frozenset({"trace", "bound"})
    trace: str | None = None
    workloads: tuple[str, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    bound: bool | None = None


class Experiment(Figures):
    """One order of arrivals under one policy, or what no policy exceeds.

    ``allocation_at_130`` is what was given out when 130 % had been asked for. An upper bound has no
    pods, no placements, and no allocation at 100 %.
    """

    left_out = frozenset({"pods", "placed", "allocation_at_100", "fragmented_at_130"})

    workload: str
    policy: str
    seed: int
    published: Number | None
    pods: Count | None = None
    placed: Count | None = None
    allocation_at_100: Number | None = None
    allocation_at_130: Number
    fragmented_at_130: Number | None = None
    cpu_seconds: Number

    @property
    def ours(self) -> float:
        """What stands beside the published figure."""
        return self.allocation_at_130


class ComparisonRow(Figures):
    """One policy on one workload: the published mean, ours over the seeds, and ours less theirs."""

    workload: str
    policy: str
    seeds: Count | None = None
    published: Number | None = None
    ours: Number
    difference: Number | None = None


class Compared(Figures):
    """The whole file. A report shows the rows, not the experiments."""

    benchmark: Literal["compare"] = "compare"
    parameters: ComparisonParameters
    experiments: tuple[Experiment, ...] = ()
    rows: Annotated[tuple[ComparisonRow, ...], Field(min_length=1)]
