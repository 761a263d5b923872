"""Which simulations there are: clusters × loads × policies × seeds, and one shard of them."""

import random
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product

from benchmarks.figures.simulated import (
    MoveParameters,
    Parameters,
    RuleParameters,
    SpeedParameters,
    WorkloadParameters,
)
from benchmarks.ownpolicy import UnknownPolicyError, label
from benchmarks.simulation import clusters, policies, sources
from benchmarks.simulation.fleet import Fleet
from benchmarks.simulation.jobs import WHOLE_GPU
from benchmarks.simulation.simulation import Rules
from benchmarks.simulation.sources import Workload


@dataclass(frozen=True, slots=True)
class Play:
    """One simulation, whole: another machine gets the same figures from it."""

    cluster: str
    workload: Workload
    policy: str
    seed: int
    rules: Rules = field(default_factory=Rules)
    adds: tuple[str, ...] = ()
    noted: bool = False  # whether curves go into the figures


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``part`` of ``parts``: of 8 parts, part 0 plays the simulations 0, 8, 16 and so on."""

    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything that is asked for."""

    clusters: tuple[str, ...]
    workload: Workload
    loads: tuple[float | None, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    rules: Rules = field(default_factory=Rules)
    adds: tuple[str, ...] = ()
    shard: Shard = field(default_factory=Shard)

    def plays(self) -> list[Play]:
        """The simulations of this shard."""
        every = [
            Play(
                cluster,
                replace(self.workload, load=load),
                policy,
                seed,
                self.rules,
                self.adds,
                noted=seed == self.seeds[0],
            )
            for cluster, load, seed, policy in product(
                self.clusters, self.loads, self.seeds, self.policies
            )
        ]
        return every[self.shard.part :: self.shard.parts]

    def check(self) -> None:
        """Raise what is wrong with it before anything runs."""
        for name in self.policies:
            policies.policy(name)
        labels = [label(name) for name in self.policies]
        for name in labels:
            if labels.count(name) > 1:
                raise UnknownPolicyError(f"two policies are called {name}")
        for source in self.clusters:
            nodes = cluster(source, self.adds)
            Fleet(nodes, random.Random(0))
            jobs = sources.jobs(replace(self.workload, load=self.loads[0]), nodes, self.seeds[0])
            for job in {job.ask: job for job in jobs}.values():
                job.ask.request(WHOLE_GPU)

    def parameters(self) -> Parameters:
        """All but the shard, as the figures have it: shards of one sweep have equal parameters."""
        work, rules, speed = self.workload, self.rules, self.rules.speed
        return Parameters(
            clusters=self.clusters,
            workload=WorkloadParameters(
                source=work.source, count=work.count, demand=work.demand, pod_gpus=work.pod_gpus
            ),
            loads=self.loads,
            policies=self.policies,
            seeds=self.seeds,
            rules=RuleParameters(
                queue=rules.queue,
                gang=rules.gang,
                speed=SpeedParameters(
                    communication=speed.communication, full=speed.full, network=speed.network
                ),
                moves=MoveParameters(after=rules.moves.after, cost=rules.moves.cost),
            ),
            adds=self.adds,
        )


@lru_cache(maxsize=4)
def cluster(source: str, adds: tuple[str, ...]) -> tuple[clusters.Node, ...]:
    """The nodes to play on; see :func:`benchmarks.simulation.clusters.cluster`."""
    return clusters.cluster(source, adds)
