"""NVIDIA's allocator refuses no pod that we say it serves."""

import json
import subprocess
from collections.abc import Iterator
from itertools import combinations
from math import comb
from random import Random
from typing import Any

import pytest

from tests.differential.managers import programs
from tests.differential.requiring import building
from topology.core.allocators import Call
from topology.core.allocators.best_effort import BEST_EFFORT, PCIE_SCORE
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.links import Link, Via
from topology.machines import machine

pytestmark = pytest.mark.long

MACHINES = ("dgx2", "hgx-h100-8", "dgx-a100", "dgx1-v100", "l40s-8", "a100-pcie-4-bridged")
QUESTIONS = 150  # For each machine and size
# Ways to split the free GPUs into sets, all of which the allocator makes: a part of a second.
MOST_SPLITS = 30_000


class Allocator:
    """go-gpuallocator as a child process."""

    def __init__(self, program: str) -> None:
        pipe = subprocess.PIPE
        self.child = subprocess.Popen([program], stdin=pipe, stdout=pipe, text=True)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Its answer to a machine or to a question about the last one."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps(question) + "\n")
        self.child.stdin.flush()
        found: dict[str, Any] = json.loads(self.child.stdout.readline())
        return found

    def begin(self, node: NodeTopology) -> None:
        """A new machine."""
        n = len(node.gpus)
        pcie, nvlinks = ([[0] * n for _ in range(n)] for _ in range(2))
        for a in range(n):
            for b in range(n):
                link = node.shape.links[a][b] or Link(0, 0)
                if a != b:
                    pcie[a][b] = PCIE_SCORE[link.pcie]
                    nvlinks[a][b] = link.nvlinks if link.via is Via.DIRECT else 0
        uuids = [gpu.uuid for gpu in node.gpus]
        assert "error" not in self.ask(uuids=uuids, pcie=pcie, nvlinks=nvlinks)


@pytest.fixture(scope="module")
def allocator() -> Iterator[Allocator]:
    """NVIDIA's code; built the first time."""
    with building():
        found = Allocator(str(programs() / "allocator"))
    with found.child:
        yield found
        assert found.child.stdin is not None
        found.child.stdin.close()


def splits(count: int, size: int) -> int:
    """How many ways there are to split so many GPUs into sets of the size, blanks included."""
    found, left = 1, -(-count // size) * size
    while left > 0:
        found *= comb(left - 1, size - 1)
        left -= size
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_the_allocator_refuses_no_pod_that_we_say_it_serves(
    allocator: Allocator, name: str
) -> None:
    node, rng = machine(name).topology(NodeName("n")), Random(name)
    allocator.begin(node)
    uuids = [gpu.uuid for gpu in node.gpus]
    asked = 0
    for size in range(2, len(uuids) + 1):
        counts = [
            count
            for count in range(size, len(uuids) + 1)
            if splits(count, size) <= MOST_SPLITS
            and BEST_EFFORT.never_refuses(node.shape, size, frozenset({count}))
        ]
        for _ in range(QUESTIONS if counts else 0):
            free = rng.sample(uuids, rng.choice(counts))
            found = allocator.ask(available=free, size=size)
            assert not found.get("error"), (size, free)
            assert len(found["ids"]) == size
            assert set(found["ids"]) <= set(free)
            asked += 1
    assert asked >= 2 * QUESTIONS


def test_it_does_fail_where_we_say_that_it_may(allocator: Allocator) -> None:
    """Of five GPUs of a DGX A100 the pair that is left beside a triple can be the best set. Which
    of the best it takes, the order of the GPUs decides, and that is random."""
    node = machine("dgx-a100").topology(NodeName("n"))
    assert not BEST_EFFORT.never_refuses(node.shape, 3, frozenset({5}))
    allocator.begin(node)
    uuids = [gpu.uuid for gpu in node.gpus]
    died: dict[bool, int] = {True: 0, False: 0}
    for free in combinations(range(len(uuids)), 5):
        call = Call(node.shape, sum(1 << p for p in free), 3)
        predicted = bool(BEST_EFFORT.outcomes(call).hazards)
        for _ in range(10):
            found = allocator.ask(available=[uuids[p] for p in free], size=3)
            died[predicted] += "died" in found.get("error", "")
    assert died[True]
    assert not died[False]
