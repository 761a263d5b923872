"""NVIDIA's device plugin on machines of the catalogue, asked on its own socket."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import grpc
import pytest

from tests.e2e.building import NEWEST
from tests.e2e.catalogue import stacks
from tests.e2e.nvidiastack import PluginSettings
from tests.e2e.standaloneplugin import StandalonePlugin
from tests.waiting import eventually
from topology.core.allocators import Call
from topology.core.allocators.best_effort import BEST_EFFORT, PADDED
from topology.core.graph import plugin_version
from topology.machines import machine

pytestmark = pytest.mark.e2e
QUESTIONS = 60
# The plugin tries all; 16 GPUs by pairs would be two million, half a minute each.
MOST_PARTITIONS = 20_000


@pytest.fixture
def lone(
    nvidia_programs: Callable[[str], Path],
) -> Iterator[Callable[[str, str], StandalonePlugin]]:
    """Makes the plugin of a machine and a version; the machine may be changed before its start."""
    made: list[StandalonePlugin] = []

    def make(name: str, version: str) -> StandalonePlugin:
        nvidia_programs(NEWEST)
        nvidia_programs(version)
        described = machine(name)
        plugin = StandalonePlugin(described.topology("lone"), described, PluginSettings(version))
        made.append(plugin.__enter__())
        return plugin

    yield make
    for plugin in reversed(made):
        plugin.__exit__(None, None, None)


@dataclass(frozen=True, slots=True)
class Question:
    """GPUs by position: which are free, which must be among the answer, how many are wanted."""

    available: tuple[int, ...]
    required: tuple[int, ...]
    size: int


def questions(random: Random, gpus: int) -> Iterator[Question]:
    """Random ones that the plugin can answer in a moment."""
    asked = 0
    while asked < QUESTIONS:
        available = tuple(sorted(random.sample(range(gpus), random.randint(1, gpus))))
        size = random.randint(1, len(available))
        if partitions(len(available), size) > MOST_PARTITIONS:
            continue
        must = random.randint(0, size) if random.random() < 0.2 else 0
        asked += 1
        yield Question(available, tuple(sorted(random.sample(available, must))), size)


def partitions(count: int, size: int) -> int:
    """In how many ways so many GPUs, filled up to a multiple of ``size``, fall into sets of it."""
    sets = -(-count // size)
    found: int = math.factorial(sets * size) // math.factorial(size) ** sets
    return found // math.factorial(sets)


def mask(positions: Collection[int]) -> int:
    return sum(1 << p for p in positions)


@pytest.mark.parametrize(("name", "version"), stacks())
def test_what_the_plugin_prefers_lies_in_the_outcomes(
    lone: Callable[[str, str], StandalonePlugin], name: str, version: str
) -> None:
    plugin = lone(name, version)
    topology = plugin.silicon.topology
    uuids = [str(gpu.uuid) for gpu in topology.gpus]
    client = plugin.start()
    died = 0
    for asked in questions(Random(19), len(uuids)):
        found = BEST_EFFORT.outcomes(
            Call(
                topology.shape,
                mask(asked.available),
                asked.size,
                mask(asked.required),
                version=plugin_version(version),
            )
        )
        try:
            answer = client.preferred(
                [uuids[p] for p in asked.available], asked.size, [uuids[p] for p in asked.required]
            )
        except grpc.RpcError:
            eventually(lambda: not plugin.alive(), "the plugin has died", detail=plugin.log)
            assert PADDED in found.hazards, (asked, plugin.log()[-2000:])
            died += 1
            client = plugin.start()
            continue
        got = {uuids.index(i) for i in answer}
        if len(got) != asked.size:
            # Overwritten slices: the kubelet fills up what the plugin left out.
            assert not found.exact, (asked, got)
            assert found.sets is None or any(not mask(got) & ~one for one in found.sets)
        else:
            assert found.sets is None or mask(got) in found.sets, (asked, got)
    print(f"{name} {version}: {QUESTIONS} questions, the plugin died of {died}")
