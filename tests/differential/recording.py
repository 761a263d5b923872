"""What NVIDIA's plugin chose among shared devices, kept as facts, one a line.

A release that has ``packed`` cannot be had as a Go module, so CI cannot ask one. What one was asked
elsewhere is in ``cases/shared-v0.20.jsonl``; our model is held against it with every run. Written
by ``python -m tests.differential --plugin-source CHECKOUT --record FILE``.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.differential.choices import POLICIES
from tests.differential.nvidiaplugin import NvidiaPlugin
from topology.core.allocators import ALLOCATORS, Call, Outcomes
from topology.core.devicesets import pack
from topology.core.graph import plugin_version
from topology.machines import machine

RECORDED = Path(__file__).parent / "cases/shared-v0.20.jsonl"
VERSION = plugin_version("v0.20.0")
MACHINE = "dgx1-v100"  # any: only how many GPUs there are matters
MOST_GPUS, MOST_REPLICAS = 8, 6
TIMES = 24  # Ties fall at random, so each question is asked so often

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A question and its answers, as counts of replicas by GPU: those free, those required among
    them, and every choice that was seen."""

    policy: str
    replicas: int
    free: Counts
    required: Counts
    size: int
    seen: frozenset[Counts]

    def predicted(self) -> Outcomes:
        """What our model expects, of pools that are as wide as the replicas."""
        shape = machine(MACHINE).topology("n").shape
        call = Call(
            shape,
            self.pool(self.free),
            self.size,
            self.pool(self.required),
            self.replicas,
            VERSION,
        )
        return ALLOCATORS[self.policy].outcomes(call)

    def pool(self, counts: Counts) -> int:
        """As our model counts devices."""
        return pack(counts, self.replicas)


def record(questions: int, seed: int, plugin: NvidiaPlugin) -> Iterator[str]:
    """The lines of so many questions to a plugin that has the policies."""
    for number in range(seed, seed + questions):
        yield json.dumps(_asked(Random(number), plugin), separators=(",", ":")) + "\n"


def _asked(rng: Random, plugin: NvidiaPlugin) -> dict[str, object]:
    policy, replicas = rng.choice(POLICIES), rng.randint(2, MOST_REPLICAS)
    gpus = [f"GPU-{number}" for number in range(rng.randint(1, MOST_GPUS))]
    everything = [f"{gpu}::{replica}" for gpu in gpus for replica in range(replicas)]
    free = rng.sample(everything, rng.randint(1, len(everything)))
    size = rng.randint(1, min(8, len(free)))
    required = rng.sample(free, rng.randint(0, size - 1) if rng.random() < 0.4 else 0)
    units = [(gpu, str(number)) for number, gpu in enumerate(gpus)]
    plugin.begin(units, "time-slicing", replicas, fails_many=False, policy=policy)
    answers = [plugin.preferred(free, required, size) for _ in range(TIMES)]

    def counted(ids: Sequence[str]) -> list[int]:
        return [sum(device.startswith(f"{gpu}::") for device in ids) for gpu in gpus]

    return {
        "policy": policy,
        "replicas": replicas,
        "free": counted(free),
        "required": counted(required),
        "size": size,
        "seen": sorted({tuple(counted(answer)) for answer in answers}),
    }


def recorded() -> tuple[Choice, ...]:
    """What was kept."""
    found = []
    for line in RECORDED.read_text().splitlines():
        case = json.loads(line)
        case["seen"] = frozenset(tuple(counts) for counts in case["seen"])
        case["free"], case["required"] = tuple(case["free"]), tuple(case["required"])
        found.append(Choice(**case))
    return tuple(found)
