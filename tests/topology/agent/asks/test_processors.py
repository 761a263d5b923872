"""CPUs by NUMA node, core and socket, read from a sysfs tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes.sysfs import write_processors
from topology.agent.asks.processors import read
from topology.agent.decides.exclusive import union
from topology.agent.decides.observed import Processors, Unseen
from topology.core.numa import cpu_set

TWO_SOCKETS = [[[0, 4], [1, 5]], [[2, 6], [3, 7]]]
"""As firmware numbers them: each core's first thread first, then the second ones."""


def test_two_sockets_whose_cores_have_the_same_numbers(tmp_path: Path) -> None:
    write_processors(tmp_path, TWO_SOCKETS, [0, 1])
    assert read(tmp_path) == Processors(
        nodes=(cpu_set("0-1,4-5"), cpu_set("2-3,6-7")),
        sockets=(0, 1),
        cores=(cpu_set("0,4"), cpu_set("1,5"), cpu_set("2,6"), cpu_set("3,7")),
    )


def test_a_cpu_that_is_offline_is_not_there(tmp_path: Path) -> None:
    write_processors(tmp_path, TWO_SOCKETS, [0, 1])
    (tmp_path / "devices/system/node/node1/cpulist").write_text("2-3,7\n")
    found = read(tmp_path)
    assert isinstance(found, Processors)
    assert found.nodes[1] == cpu_set("2-3,7")
    assert found.cores[2:] == (cpu_set("2"), cpu_set("3,7"))


@pytest.mark.parametrize("nodes", [[[[0]], []], [[], [[0]]]], ids=["last", "first"])
def test_a_numa_node_without_cpus_has_no_socket(
    tmp_path: Path, nodes: list[list[list[int]]]
) -> None:
    write_processors(tmp_path, nodes, [0, 0])
    found = read(tmp_path)
    assert isinstance(found, Processors)
    assert [bool(cpus) for cpus in found.nodes] == [bool(cores) for cores in nodes]
    assert [socket is None for socket in found.sockets] == [not cores for cores in nodes]


def test_several_sockets_of_a_numa_node_are_none(tmp_path: Path) -> None:
    write_processors(tmp_path, TWO_SOCKETS, [0, 1])
    (tmp_path / "devices/system/cpu/cpu1/topology/physical_package_id").write_text("1\n")
    (tmp_path / "devices/system/cpu/cpu2/topology/physical_package_id").write_text("-1\n")
    found = read(tmp_path)
    assert isinstance(found, Processors)
    assert found.sockets == (None, None)
    assert cpu_set("1") in found.cores, "nobody shares its core there"


@pytest.mark.parametrize(
    ("lacks", "cause"),
    [
        pytest.param("node/node0/cpulist", "cpulist: No such file", id="a list"),
        pytest.param("cpu/cpu6/topology/core_id", "core_id: No such file", id="a core"),
    ],
)
def test_what_cannot_be_read_is_unseen(tmp_path: Path, lacks: str, cause: str) -> None:
    write_processors(tmp_path, TWO_SOCKETS, [0, 1])
    (tmp_path / "devices/system" / lacks).unlink()
    found = read(tmp_path)
    assert isinstance(found, Unseen)
    assert (found.fact, cause in found.cause) == ("CPUs by NUMA node", True)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param("0-8191", "allowed are CPUs from 0 to 4095", id="too many CPUs"),
        pytest.param("few", "'few': allowed are CPUs", id="no list"),
    ],
)
def test_what_makes_no_sense_is_unseen(tmp_path: Path, text: str, cause: str) -> None:
    write_processors(tmp_path, TWO_SOCKETS, [0, 1])
    (tmp_path / "devices/system/node/node1/cpulist").write_text(text)
    found = read(tmp_path)
    assert isinstance(found, Unseen)
    assert cause in found.cause


def test_numa_nodes_with_a_gap_or_none_at_all_are_unseen(tmp_path: Path) -> None:
    assert isinstance(read(tmp_path), Unseen)
    write_processors(tmp_path, TWO_SOCKETS, [0, 1])
    system = tmp_path / "devices/system/node"
    (system / "node1").rename(system / "node2")
    assert read(tmp_path) == Unseen(
        "CPUs by NUMA node", "NUMA nodes are not numbered from 0 on without gaps"
    )


@pytest.mark.skipif(not Path("/sys/devices/system/node/node0").exists(), reason="no NUMA in sysfs")
def test_this_very_machine() -> None:
    found = read(Path("/sys"))
    assert isinstance(found, Processors)
    online = cpu_set(Path("/sys/devices/system/cpu/online").read_text())
    assert union(found.nodes) == union(found.cores) == online
    assert online.bit_count() == os.sysconf("SC_NPROCESSORS_ONLN")
