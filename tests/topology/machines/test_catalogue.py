"""The catalogue of machines: laws that hold for every machine, and real matrices beside them."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path

import networkx as nx
import pytest

from tests import recorded
from tests.nodes import subsets
from topology import codec
from topology.core.devices import MIB
from topology.core.graph import AllocatorConfig, TopologyError
from topology.core.links import Link, LinkKind, Via, canonical_product, nvlink_port
from topology.core.numa import cpu_list
from topology.core.scoring import best_ring
from topology.machines import MACHINES, Machine, UnknownMachine, machine
from topology.machines.catalogue import _CATALOGUE
from topology.machines.notation import Card, drawn

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())

every_machine = pytest.mark.parametrize("kind", [pytest.param(m, id=m.name) for m in _CATALOGUE])


# --- laws of every machine --------------------------------------------------------------------


def test_names_are_unique_and_label_the_table() -> None:
    assert [m.name for m in _CATALOGUE] == list(MACHINES)
    assert len(MACHINES) >= 24


@every_machine
def test_name_description_and_source_can_be_read(kind: Machine) -> None:
    assert re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", kind.name)
    assert kind.description
    assert len(kind.description) < 90
    assert kind.source
    assert "//" not in kind.source


@every_machine
def test_every_pair_has_one_link_and_the_matrix_is_symmetric(kind: Machine) -> None:
    topology = kind.topology("n")
    n = len(topology.gpus)
    assert [(link.a, link.b) for link in topology.links] == list(combinations(range(n), 2))
    matrix = topology.shape.links
    for p in range(n):
        assert matrix[p][p] is None
        assert [matrix[q][p] for q in range(n)] == list(matrix[p])
    assert all(link.pcie is not LinkKind.UNKNOWN for link in topology.links)


@every_machine
def test_the_wiring_is_symmetric(kind: Machine) -> None:
    for a, b in combinations(range(kind.size), 2):
        assert kind.nvlink.count(a, b) == kind.nvlink.count(b, a)


@every_machine
def test_direct_links_fit_the_gpu_and_switched_ones_are_its_whole_attachment(kind: Machine) -> None:
    port = nvlink_port(kind.card.product)
    used: Counter[int] = Counter()
    for link in kind.links:
        if not link.nvlinks:
            assert link == Link(link.a, link.b, link.pcie)
            continue
        assert port is not None
        assert link.nvlink_one_way == port.one_way > 0
        if link.via is Via.SWITCH:
            assert link.nvlinks == port.links
        else:
            used.update({link.a: link.nvlinks, link.b: link.nvlinks})
    assert all(port is not None and count <= port.links for count in used.values())


def _disagreements(kind: Machine) -> list[tuple[int, int]]:
    return [
        (link.a, link.b)
        for link in kind.links
        if None not in (kind.numa_nodes[link.a], kind.numa_nodes[link.b])
        and (link.pcie is LinkKind.SYS) != (kind.numa_nodes[link.a] != kind.numa_nodes[link.b])
    ]


@every_machine
def test_sys_means_another_numa_node_unless_a_reason_is_given(kind: Machine) -> None:
    assert bool(_disagreements(kind)) == bool(kind.numa_note)


@every_machine
def test_pcie_classes_form_a_tree(kind: Machine) -> None:
    for a, b, c in permutations(kind.leaves, 3):
        assert kind.classes[a, c] >= min(kind.classes[a, b], kind.classes[b, c])


@every_machine
def test_every_nic_knows_every_gpu_and_shares_a_numa_node_with_the_near_ones(kind: Machine) -> None:
    for nic in kind.nics:
        assert [index for index, _ in nic.distances] == list(range(kind.size))
        near = {kind.numa_nodes[i] for i, how in nic.distances if how > LinkKind.SYS}
        assert near == {nic.numa_node} if near else nic.numa_node is None


@every_machine
def test_every_numa_node_has_cpus_of_its_own(kind: Machine) -> None:
    found = kind.kubelet()
    if kind.name == "ac922-6":  # its NUMA nodes are 0 and 8, and a record numbers them from 0 on
        assert (found.numa, set(kind.numa_nodes)) == (None, {0, 8})
        return
    assert found.numa is not None
    assert found.numa_distances is not None
    nodes = found.numa.nodes
    assert len(found.numa_distances) == len(nodes) > max(n or 0 for n in kind.numa_nodes)
    every = sum(node.cpus for node in nodes)
    assert every == (1 << every.bit_length()) - 1, "each CPU is on one NUMA node"
    assert (every & ~found.numa.allocatable).bit_count() == found.numa.threads, "one core"
    record = codec.encode(kind.topology("n", allocator=found))
    assert codec.decode(record, strict=True).topology.allocator == found


def test_cpus_that_pods_may_not_have_are_whole_cores_from_the_first_one() -> None:
    """dgx-a100: 128 cores of two threads, CPU n + 128 beside CPU n, 16 cores in a NUMA node."""
    numa = machine("dgx-a100").kubelet(cpus=251, memory=8 * 2**30).numa
    assert numa is not None
    assert [cpu_list(node.cpus) for node in numa.nodes[:2]] == ["0-15,128-143", "16-31,144-159"]
    assert [node.socket for node in numa.nodes] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert cpu_list(numa.allocatable) == "3-127,131-255", "256 CPUs without three cores"
    assert numa.nodes[7].memory == (("memory", 2**30),)


@pytest.mark.parametrize("cpus", ["2x64", "64", "2 x 64 x 2", "0x4x2"])
def test_cpus_in_another_form_are_refused(cpus: str) -> None:
    with pytest.raises(TopologyError, match="2x64x2/4"):
        replace(machine("t4-1"), cpus=cpus)


MODELS = re.compile(
    r"k80|(p|v|a|h|b|gh|gb)\d{2,3}s?(-|$)|titan-v|t4|h20|l40s"
    r"|geforce-rtx-\d{4}(-ti)?|rtx-a6000|rtx-pro-6000-blackwell"
)


@every_machine
def test_the_product_reads_as_nvml_reports_it(kind: Machine) -> None:
    name = canonical_product(kind.card.product)
    assert MODELS.match(name), name
    assert kind.card.product.startswith(("NVIDIA ", "Tesla "))
    gigabytes = re.search(r"(\d+)gb", name)
    if gigabytes and not name.startswith("gh200"):  # a GH200's 480 GB is the CPU's
        assert 0.93 < kind.card.mib / 1024 / int(gigabytes[1]) <= 1


@every_machine
def test_pci_addresses_are_whole_distinct_and_ascending(kind: Machine) -> None:
    found = kind.pci_bus_ids
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", bus) for bus in found)
    assert list(found) == sorted(set(found))  # NVML numbers GPUs by their address


@every_machine
def test_nodes_of_a_machine_share_shape_links_and_nics(kind: Machine) -> None:
    one, two = kind.topology("one"), kind.topology("two")
    assert one.shape is two.shape
    assert one.nics is two.nics
    assert all(a is b for a, b in zip(one.links, two.links, strict=True))
    assert one.gpus[0].memory == kind.card.mib * MIB


@every_machine
def test_a_node_is_made_the_same_way_every_time(kind: Machine) -> None:
    assert kind.topology("n") == kind.topology("n")


def test_uuids_look_like_nvmls_and_are_unique_across_nodes() -> None:
    kind = machine("dgx2")
    uuids = [gpu.uuid for i in range(500) for gpu in kind.topology(f"n{i}").gpus]
    assert len(set(uuids)) == len(uuids) == 8000
    pattern = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    assert all(pattern.fullmatch(uuid) for uuid in uuids)


def test_plugin_and_kubelet_are_stock_by_default() -> None:
    kind = machine("t4-4")
    stock = AllocatorConfig("best-effort", cpu_manager_policy="none", memory_manager_policy="None")
    assert kind.topology("n").allocator == stock
    config = AllocatorConfig(policy="packed", plugin_version="0.20.0")
    assert kind.topology("n", allocator=config).allocator is config


def test_trays_of_a_group_share_a_fabric_and_other_groups_have_another() -> None:
    tray = machine("gb200-tray")
    first, second = tray.topology("r1-0", group="r1"), tray.topology("r1-1", group="r1")
    assert first.fabric is not None
    assert first.fabric == second.fabric != tray.topology("r2-0", group="r2").fabric
    assert [m.name for m in MACHINES.values() if m.topology("n").fabric] == ["gb200-tray"]


# --- looking up, writing down -----------------------------------------------------------------


def test_an_unknown_name_is_named_with_the_closest_ones() -> None:
    with pytest.raises(UnknownMachine, match=r"'DGX1-V10' is not.*dgx1-v100.*machines` lists") as e:
        machine("DGX1-V10")
    assert e.value.name == "DGX1-V10"
    assert e.value.close[0] == "dgx1-v100"
    with pytest.raises(ValueError, match=r"catalogue: did you mean dgx1-p100, dgx1-v100, dgx2\? "):
        machine("dgx1")
    with pytest.raises(ValueError, match=r"^'qqq' is not in the catalogue; "):
        machine("qqq")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"numa": "000"}, "t4-4: numa: 3 for 4 GPUs", id="numa"),
        pytest.param({"buses": "01"}, "t4-4: buses: 1 for 4 GPUs", id="buses"),
        pytest.param(
            {"pcie": "0 PHB 1 PHB 1 PHB 3"}, r"t4-4: pcie: GPUs \[0, 1, 1, 3\]", id="gpus"
        ),
    ],
)
def test_a_slip_in_a_declaration_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        replace(machine("t4-4"), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [("X1", "2X"), ("X1", "1"), ("11", "1X")])
def test_a_lopsided_drawing_is_refused(rows: tuple[str, ...]) -> None:
    with pytest.raises(TopologyError, match="symmetry"):
        drawn(*rows)


def test_a_machine_of_ones_own_takes_one_declaration() -> None:
    own = Machine(
        name="lab-2",
        description="two cards and an adapter",
        card=Card("NVIDIA RTX A6000", 49140),
        nvlink=drawn("X4", "4X"),
        pcie="0 PXB 1 NODE mlx5_0",
        numa="00",
        buses="01 02",
        source="our own matrix",
    )
    node = own.topology("lab")
    assert node.links == (Link(0, 1, LinkKind.PXB, 4, Via.DIRECT, node.links[0].nvlink_one_way),)
    assert node.links[0].bandwidth == pytest.approx(112.5)
    assert node.nics[0].distances == ((0, LinkKind.NODE), (1, LinkKind.NODE))


# --- numbers everybody can check --------------------------------------------------------------


def test_dgx1v_is_the_hybrid_cube_mesh() -> None:
    topology = machine("dgx1-v100").topology("n")
    assert Counter(link.nvlinks for link in topology.links) == {0: 12, 1: 8, 2: 8}
    ends = [end for link in topology.links for end in (link.a, link.b) for _ in range(link.nvlinks)]
    assert set(Counter(ends).values()) == {6}
    shape = topology.shape
    triples, quads, whole = (
        Counter(float(best_ring(shape, mask)) for mask in subsets(shape.all_gpus, size))
        for size in (3, 4, 8)
    )
    # The doubled links form one ring through all eight GPUs, so no smaller ring is doubled.
    assert (max(triples), max(quads), max(whole)) == (50, 50, 100)
    assert triples[50.0] == 4 + 4  # the triangles of each quad
    assert quads[50.0] == 2 + 6  # the quads, and a pair of posts for every pair of a quad


def test_dgx1p_has_the_same_pairs_with_one_link_each() -> None:
    pascal, volta = machine("dgx1-p100").links, machine("dgx1-v100").links
    assert [bool(a.nvlinks) for a in pascal] == [bool(b.nvlinks) for b in volta]
    assert {link.nvlinks for link in pascal} == {0, 1}
    assert {float(link.bandwidth) for link in pascal if link.nvlinks} == {40}


def test_dgx2_is_sixteen_gpus_at_their_whole_attachment() -> None:
    links = machine("dgx2").links
    assert len(links) == 120
    assert {(link.nvlinks, link.via) for link in links} == {(6, Via.SWITCH)}
    assert {float(link.bandwidth) for link in links} == {300}


# --- beside real machines ---------------------------------------------------------------------


def _shared(*parts: str) -> Path:
    return recorded.shared("fixtures", *parts)


@dataclass
class Matrix:
    """A topo matrix: cells by row and column name, NUMA node by GPU where it is a number."""

    cells: dict[tuple[str, str], str]
    numa: dict[int, int]
    nics: dict[str, str]

    @property
    def size(self) -> int:
        return 1 + max(int(col[3:]) for _, col in self.cells if col.startswith("GPU"))


def _read(path: Path) -> Matrix:
    """A small reader of its own, so that the project's parser is no witness for itself."""
    text = re.sub(r"\bSOC\b", "SYS", path.read_text())
    lines = text.splitlines()
    header = next(line for line in lines if "GPU0" in line and "CPU Affinity" in line)
    columns = re.findall(r"GPU\d+|NIC\d+|mlx5_\d+", header.partition("CPU Affinity")[0])
    cells, numa = {}, {}
    for line in lines[lines.index(header) + 1 :]:
        row, *words = line.split() or [""]
        if not row.startswith("GPU"):
            continue
        cells.update({(row, col): word for col, word in zip(columns, words, strict=False)})
        rest = words[len(columns) :]
        if "NUMA Affinity" in header and len(rest) > 1 and rest[1].isdecimal():
            numa[int(row[3:])] = int(rest[1])
    names = dict(re.findall(r"^\s*(NIC\d+): (\S+)$", text, re.MULTILINE))
    nics = {c: names.get(c, c.replace("NIC", "mlx5_")) for c in columns if not c.startswith("GPU")}
    return Matrix(cells, numa, nics)


REAL = [
    ("hive-k80-x4-node", "k80-4"),
    ("dgx1-p100-old-soc-header-merged", "dgx1-p100"),
    ("dgx1v-v100-mlx5", "dgx1-v100"),
    ("v100x8-vm-phb-numa-range", "p3.16xlarge"),
    ("p3.8xlarge-v100x4", "p3.8xlarge"),
    ("v100x4-sdumont-nv2-all", "v100-sxm2-4"),
    ("TRUNC-dgx2-v100x16-first4rows", "dgx2"),
    ("titanv-x8-pix-phb", "titanv-8"),
    ("dgx-a100-mlx5x12", "dgx-a100"),
    ("dgx-a100-mlx5x12", "dgx-a100-80"),
    ("p4d.24xlarge-a100x8", "p4d.24xlarge"),
    ("della-a100x4-nv4", "hgx-a100-4"),
    ("polaris-a100x4-noindent", "hgx-a100-4-nps4"),
    ("a800x8-nv8-bond-nics", "hgx-a800-8"),
    ("a100x4-pcie-nv12-pairs-2numa", "a100-pcie-4-bridged"),
    ("nv4-pairs-x4-oddeven-cpus", "a6000-4-bridged"),
    ("rtx3090x2-nv4", "rtx3090-2-bridged"),
    ("l40s-x4-node-sys-2nics", "l40s-4"),
    ("4090x8-node-sys", "rtx4090-8"),
    ("4090x8-allsys-nic-on-gpu6", "rtx4090-8-allsys"),
    ("TRUNC-h100x4-nv6-8numa", "hgx-h100-4"),
    ("h100x8-sxm-nonic", "hgx-h100-8"),
    ("h200x8-12nics-prompt-emoji", "dgx-h100"),
    ("h200x8-12nics-prompt-emoji", "hgx-h200-8"),
    ("h20x8-2nics", "hgx-h20-8"),
    ("gb200x4-docexample", "gb200-tray"),
    ("TRUNC-gb200x4-6nics-numa-ids", "gb200-tray"),
    ("rtxpro6000-x4-vm-phb", "rtxpro6000-4"),
    ("rtx5060ti-x4-phb", "rtx5060ti-4"),
]


@pytest.mark.parametrize(
    ("file", "name"), [pytest.param(*case, id="=".join(case)) for case in REAL]
)
def test_a_machine_is_what_the_real_one_shows(file: str, name: str) -> None:
    seen, kind = _read(_shared("topo", f"{file}.txt")), machine(name)
    assert seen.size == kind.size
    compared = 0
    for link in kind.links:
        cell = seen.cells.get((f"GPU{link.a}", f"GPU{link.b}"))
        if cell is not None:  # else a row that was cut at the source
            assert cell == (f"NV{link.nvlinks}" if link.nvlinks else link.pcie.name), link
            compared += 1
    assert compared == len(kind.links) or file.startswith("TRUNC-")
    assert compared >= kind.size - 1
    for index, node in seen.numa.items():
        assert kind.numa_nodes[index] == node
    if seen.nics:
        assert sorted(seen.nics.values()) == sorted(nic.name for nic in kind.nics)
    for (row, column), cell in seen.cells.items():
        if column in seen.nics:
            assert cell == kind.classes[seen.nics[column], row[3:]].name, (row, column)


def test_hgx_h100_has_the_pcie_tree_that_topo_mp_shows() -> None:
    seen, kind = _read(_shared("topo", "hopper-x8-topo-mp-pcie-only.txt")), machine("hgx-h100-8")
    for link in kind.links:
        assert seen.cells[f"GPU{link.a}", f"GPU{link.b}"] == link.pcie.name
    assert seen.nics == {f"NIC{i}": f"mlx5_{i}" for i in range(12)}
    for (row, column), cell in seen.cells.items():
        if column in seen.nics:
            assert cell == kind.classes[seen.nics[column], row[3:]].name
    assert [seen.numa[i] for i in range(8)] == list(kind.numa_nodes)


@pytest.mark.parametrize("file", ["v100x8-hugectr-mixed-tabs", "v100x8-oneflow-spaces"])
def test_other_v100_servers_are_a_dgx1_numbered_differently(file: str) -> None:
    seen = _read(_shared("topo", f"{file}.txt"))
    ours: nx.Graph[int] = nx.Graph()
    theirs: nx.Graph[int] = nx.Graph()
    for link in machine("dgx1-v100").links:
        cell = f"NV{link.nvlinks}" if link.nvlinks else link.pcie.name
        ours.add_edge(link.a, link.b, cell=cell)
        theirs.add_edge(link.a, link.b, cell=seen.cells[f"GPU{link.a}", f"GPU{link.b}"])
    assert nx.is_isomorphic(ours, theirs, edge_match=lambda a, b: a["cell"] == b["cell"])


@pytest.mark.parametrize(
    ("file", "name"),
    [
        pytest.param("aws-p4d-24xl-topo.xml", "p4d.24xlarge", id="p4d"),
        pytest.param("azure-ndv4-topo.xml", "nd96asr-v4", id="nd96asr"),
    ],
)
def test_the_clouds_topology_files_for_nccl_agree(file: str, name: str) -> None:
    root, kind = ET.parse(_shared("nccl", file)).getroot(), machine(name)
    gpus: dict[str, tuple[int, str]] = {}
    adapters: Counter[str] = Counter()
    for cpu in root.iter("cpu"):
        for switch in cpu.findall("pci"):
            bus = switch.attrib["busid"]
            for leaf in switch.findall("pci"):
                if leaf.attrib["class"] == "0x030200":
                    gpus[leaf.attrib["busid"]] = (int(cpu.attrib["numaid"]), bus)
                else:
                    adapters[bus] += 1
    assert sorted(gpus) == list(kind.pci_bus_ids)
    for i, address in enumerate(kind.pci_bus_ids):
        numa, switch_bus = gpus[address]
        assert kind.numa_nodes[i] == numa
        near = [nic for nic in kind.nics if dict(nic.distances)[i] is LinkKind.PIX]
        assert len(near) == adapters[switch_bus]
    for link in kind.links:
        below_one_switch = gpus[kind.pci_bus_ids[link.a]] == gpus[kind.pci_bus_ids[link.b]]
        assert (link.pcie is LinkKind.PIX) == below_one_switch


def test_dgx2_has_the_bridges_that_hwloc_saw() -> None:
    root = ET.parse(_shared("hwloc", "nvidiaDGX2.xml")).getroot()
    kind = machine("dgx2")
    paths: dict[str, list[str]] = {}

    def walk(element: ET.Element, above: list[str]) -> None:
        if element.attrib.get("type") in ("Package", "Bridge"):
            above = [*above, element.attrib["id"]]
        backends = [e for e in element if e.attrib.get("name", "").startswith("nvml")]
        if element.attrib.get("type") == "PCIDev" and backends:
            paths[element.attrib["pci_busid"]] = above
        for child in element:
            walk(child, above)

    walk(root, [])
    assert list(paths) == list(kind.pci_bus_ids)

    def seen(a: list[str], b: list[str]) -> LinkKind:
        shared = sum(x == y for x, y in zip(a, b, strict=False))
        if shared == 0:
            return LinkKind.SYS
        if shared == 1:  # the package alone
            return LinkKind.NODE
        # Below the last bridge in common: one more is a port of the same switch.
        return LinkKind.PIX if len(a) - shared == 1 else LinkKind.PXB

    for link in kind.links:
        a, b = kind.pci_bus_ids[link.a], kind.pci_bus_ids[link.b]
        assert link.pcie is seen(paths[a], paths[b]), link
