"""What sysfs shows: the PCI tree, NUMA distances, and CPUs by NUMA node, socket and core."""

import os
from pathlib import Path

import pytest

from tests.fakes.sysfs import write_processors, write_sysfs
from topology.agent.model.exclusive import union
from topology.agent.model.observations import Processors, Unseen, pcie_class
from topology.agent.probes.sysfs import pci_tree, processors
from topology.core.links import LinkKind
from topology.core.numa import cpu_set
from topology.machines import MACHINES, machine

ROOT = ("pci0000:00",)


@pytest.mark.parametrize(
    ("a", "b", "numa", "kind"),
    [
        pytest.param(("pci0000:00", "g"), ("pci0000:80", "n"), (0, 1), "SYS", id="two sockets"),
        pytest.param(("pci0000:00", "g"), ("pci0000:16", "n"), (0, 0), "NODE", id="two roots"),
        pytest.param(("pci0:0", "g"), ("pci0:1", "n"), (None, None), "SYS", id="nobody says where"),
        pytest.param((*ROOT, "p1", "g"), (*ROOT, "p2", "n"), (0, 0), "PHB", id="two root ports"),
        pytest.param(
            (*ROOT, "p1", "up", "d1", "g"), (*ROOT, "p1", "up", "d2", "n"), (0, 0), "PIX",
            id="one switch",
        ),
        pytest.param(
            (*ROOT, "p1", "up", "d1", "up2", "d3", "g"), (*ROOT, "p1", "up", "d2", "n"), (0, 0),
            "PXB", id="a switch below a switch",
        ),
        pytest.param((*ROOT, "p1", "f0"), (*ROOT, "p1", "f1"), (0, 0), "PIX", id="one slot"),
    ],
)  # fmt: skip
def test_class_follows_from_where_paths_part(
    a: tuple[str, ...], b: tuple[str, ...], numa: tuple[int | None, int | None], kind: str
) -> None:
    assert pcie_class(a, b, *numa) is LinkKind[kind]
    assert pcie_class(b, a, *reversed(numa)) is LinkKind[kind]


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in MACHINES])
def test_catalogue_machines_read_back_from_sysfs(name: str, tmp_path: Path) -> None:
    topology = machine(name).topology("n")
    write_sysfs(tmp_path, topology, machine(name))

    tree = pci_tree(tmp_path)

    assert tree.unseen == ()
    for gpu in topology.gpus:
        assert tree.numa.get(str(gpu.pci_bus_id)) == gpu.numa_node
    for nic in topology.nics:
        there = tree.nics[nic.name]
        for index, kind in nic.distances:
            gpu = topology.gpus[index]
            at = tree.places[str(gpu.pci_bus_id)]
            found = pcie_class(there.place, at, there.numa, gpu.numa_node)
            if not (machine(name).numa_note and max(kind, found) <= LinkKind.NODE):
                assert found is kind, (nic.name, index)


def test_without_sysfs_it_says_so(tmp_path: Path) -> None:
    tree = pci_tree(tmp_path)
    assert [u.fact for u in tree.unseen] == ["PCI tree"]


def test_a_nic_off_pci_is_unseen_and_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "class/infiniband/rxe0").mkdir(parents=True)
    tree = pci_tree(tmp_path)
    assert [str(u) for u in tree.unseen] == ["PCI position of an RDMA NIC of rxe0: not on PCI"]
    assert tree.nics == {}


def test_links_in_a_circle_hide_no_other(tmp_path: Path) -> None:
    devices = tmp_path / "bus/pci/devices"
    place = tmp_path / "devices/pci0000:00/0000:01:00.0"
    place.mkdir(parents=True)
    devices.mkdir(parents=True)
    (devices / "0000:01:00.0").symlink_to(place)
    (devices / "0000:02:00.0").symlink_to("0000:02:00.0")
    assert pci_tree(tmp_path).places.keys() == {"0000:01:00.0"}


@pytest.mark.parametrize("row", ["10", "-1 10", "1000 10", "10 x", "9" * 5000 + " 10", ""])
def test_numa_distances_that_no_kernel_writes_are_not_known(row: str, tmp_path: Path) -> None:
    nodes = [tmp_path / f"devices/system/node/node{i}" for i in range(2)]
    for node in nodes:
        node.mkdir(parents=True)
        (node / "distance").write_text("10 21\n")
    assert pci_tree(tmp_path).numa_distances == ((10, 21), (10, 21))
    (nodes[1] / "distance").write_text(row)
    assert pci_tree(tmp_path).numa_distances is None


# As firmware numbers them: each core's first thread first, then the second ones.
TWO_SOCKETS = [[[0, 4], [1, 5]], [[2, 6], [3, 7]]]


def test_two_sockets_whose_cores_have_the_same_numbers(tmp_path: Path) -> None:
    write_processors(tmp_path, TWO_SOCKETS, [0, 1])
    assert processors(tmp_path) == Processors(
        nodes=(cpu_set("0-1,4-5"), cpu_set("2-3,6-7")),
        sockets=(0, 1),
        cores=(cpu_set("0,4"), cpu_set("1,5"), cpu_set("2,6"), cpu_set("3,7")),
    )


def test_a_cpu_that_is_offline_is_not_there(tmp_path: Path) -> None:
    write_processors(tmp_path, TWO_SOCKETS, [0, 1])
    (tmp_path / "devices/system/node/node1/cpulist").write_text("2-3,7\n")
    found = processors(tmp_path)
    assert isinstance(found, Processors)
    assert found.nodes[1] == cpu_set("2-3,7")
    assert found.cores[2:] == (cpu_set("2"), cpu_set("3,7"))


@pytest.mark.parametrize("nodes", [[[[0]], []], [[], [[0]]]], ids=["last", "first"])
def test_a_numa_node_without_cpus_has_no_socket(
    tmp_path: Path, nodes: list[list[list[int]]]
) -> None:
    write_processors(tmp_path, nodes, [0, 0])
    found = processors(tmp_path)
    assert isinstance(found, Processors)
    assert [bool(cpus) for cpus in found.nodes] == [bool(cores) for cores in nodes]
    assert [socket is None for socket in found.sockets] == [not cores for cores in nodes]


def test_several_sockets_of_a_numa_node_are_none(tmp_path: Path) -> None:
    write_processors(tmp_path, TWO_SOCKETS, [0, 1])
    (tmp_path / "devices/system/cpu/cpu1/topology/physical_package_id").write_text("1\n")
    (tmp_path / "devices/system/cpu/cpu2/topology/physical_package_id").write_text("-1\n")
    found = processors(tmp_path)
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
    found = processors(tmp_path)
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
    found = processors(tmp_path)
    assert isinstance(found, Unseen)
    assert cause in found.cause


def test_numa_nodes_with_a_gap_or_none_at_all_are_unseen(tmp_path: Path) -> None:
    assert isinstance(processors(tmp_path), Unseen)
    write_processors(tmp_path, TWO_SOCKETS, [0, 1])
    system = tmp_path / "devices/system/node"
    (system / "node1").rename(system / "node2")
    assert processors(tmp_path) == Unseen(
        "CPUs by NUMA node", "NUMA nodes are not numbered from 0 without gaps"
    )


@pytest.mark.skipif(not Path("/sys/devices/system/node/node0").exists(), reason="no NUMA in sysfs")
def test_this_very_machine() -> None:
    found = processors(Path("/sys"))
    assert isinstance(found, Processors)
    online = cpu_set(Path("/sys/devices/system/cpu/online").read_text())
    assert union(found.nodes) == union(found.cores) == online
    assert online.bit_count() == os.sysconf("SC_NPROCESSORS_ONLN")
