"""PCI places to classes, and a sysfs tree read from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.sysfs import write_sysfs
from topology.agent.asks.pci import read
from topology.agent.decides.pcitree import pcie_class
from topology.core.links import LinkKind
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

    tree = read(tmp_path)

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
    tree = read(tmp_path)
    assert [u.fact for u in tree.unseen] == ["PCI tree"]


def test_a_nic_off_pci_is_unseen_and_costs_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "class/infiniband/rxe0").mkdir(parents=True)
    tree = read(tmp_path)
    assert [str(u) for u in tree.unseen] == ["place of an RDMA NIC of rxe0: not on PCI"]
    assert tree.nics == {}


def test_links_in_a_circle_cost_nobody_else(tmp_path: Path) -> None:
    devices = tmp_path / "bus/pci/devices"
    place = tmp_path / "devices/pci0000:00/0000:01:00.0"
    place.mkdir(parents=True)
    devices.mkdir(parents=True)
    (devices / "0000:01:00.0").symlink_to(place)
    (devices / "0000:02:00.0").symlink_to("0000:02:00.0")
    assert read(tmp_path).places.keys() == {"0000:01:00.0"}


@pytest.mark.parametrize("row", ["10", "-1 10", "1000 10", "10 x", "9" * 5000 + " 10", ""])
def test_numa_distances_that_no_kernel_writes_are_not_known(row: str, tmp_path: Path) -> None:
    nodes = [tmp_path / f"devices/system/node/node{i}" for i in range(2)]
    for node in nodes:
        node.mkdir(parents=True)
        (node / "distance").write_text("10 21\n")
    assert read(tmp_path).numa_distances == ((10, 21), (10, 21))
    (nodes[1] / "distance").write_text(row)
    assert read(tmp_path).numa_distances is None
