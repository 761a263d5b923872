"""NCCL's topology XML: clouds' static files by table, and our own dumps for the rest."""

from itertools import combinations

import pytest

from tests import recorded
from tests.topology.sources.reading import NODE, link
from topology import codec
from topology.core.devices import MIB, Bytes
from topology.core.links import GBps, Link, LinkKind, Via
from topology.sources import SourceError, parse_nccl, read

SHARED = recorded.SHARED / "fixtures"
needs_shared = recorded.needs("fixtures", "nccl")

# File: NUMA node by GPU, PCIe classes of GPU0 to the others, bus id of GPU0, the first NIC, its
# NUMA node and distances.
FILES = {
    "aws-p4d-24xl-topo": (
        "00001111",
        "PIX NODE NODE SYS SYS SYS SYS",
        "0000:10:1c.0",
        ("0000:10:1b.0", 0, "PIX PIX NODE NODE SYS SYS SYS SYS"),
    ),
    "azure-ndv4-topo": (
        "11003322",
        "PIX SYS SYS SYS SYS SYS SYS",
        "0001:00:00.0",
        ("0103:00:00.0", 0, "SYS SYS PIX PIX SYS SYS SYS SYS"),
    ),
    "azure-ncv4-topo": ("0123", "SYS SYS SYS", "0001:00:00.0", None),
}


def refusal(text: str) -> str:
    with pytest.raises(SourceError) as caught:
        parse_nccl(text, NODE)
    message = str(caught.value)
    assert message.isprintable()
    return message


@needs_shared
@pytest.mark.parametrize("name", FILES)
def test_files_of_clouds(name: str) -> None:
    numa, classes, bus, nic = FILES[name]
    text = (SHARED / "nccl" / f"{name}.xml").read_text(encoding="utf-8")
    found = read(text, NODE, product="NVIDIA A100-SXM4-40GB", memory=Bytes(40960 * MIB)).topology
    assert "".join(str(gpu.numa_node) for gpu in found.gpus) == numa
    assert {(g.product, g.memory) for g in found.gpus} == {("NVIDIA A100-SXM4-40GB", 40960 * MIB)}
    others = [link(found, 0, b) for b in range(1, len(numa))]
    assert [one.pcie.name for one in others] == classes.split()
    assert not any(one.nvlinks for one in found.links)
    assert found.gpus[0].pci_bus_id == bus
    if nic is None:
        assert not found.nics
    else:
        first = found.nics[0]
        notes = " ".join(kind.name for _, kind in first.distances)
        assert (first.name, first.numa_node, notes) == nic


@needs_shared
def test_nvlinks_to_themselves_are_reported_and_not_counted() -> None:
    text = (SHARED / "nccl" / "azure-ncv4-topo.xml").read_text(encoding="utf-8")
    notes = [str(finding) for finding in read(text, NODE).findings]
    assert "line 5: 12 NVLinks of GPU0 lead to itself: not counted" in notes
    assert "line 9: 'eth0' has no GUID, so it is not an RDMA NIC and is left out" in notes
    assert "line 1: the file has no NVLink between these GPUs, so none is recorded" in notes


def gpu(bus: str, dev: int | None, *nvlinks: str, vendor: str = "0x10de") -> str:
    number = "" if dev is None else f'<gpu dev="{dev}" sm="80">{"".join(nvlinks)}</gpu>'
    return f'<pci busid="{bus}" class="0x030200" vendor="{vendor}">{number}</pci>'


def nvlink(target: str, count: object, tclass: str = "0x030200") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def switch(*below: str) -> str:
    return f'<pci busid="0000:f0:00.0" class="0x060400">{"".join(below)}</pci>'


def nic(bus: str, *names: str) -> str:
    nets = "".join(f'<net name="{name}" guid="0x9a"/>' for name in names)
    return f'<pci busid="{bus}" class="0x020700"><nic>{nets}</nic></pci>'


def cpu(numa: object, *below: str) -> str:
    return f'<cpu numaid="{numa}">{"".join(below)}</cpu>'


def system(*cpus: str) -> str:
    return "\n".join(['<system version="1">', *cpus, "</system>"])


A, B, C, D = (f"0000:{bus}:00.0" for bus in ("07", "0b", "48", "4c"))
PAIR = system(cpu(0, gpu(A, 0), gpu(B, 1)))


def test_pcie_classes_by_the_nearest_common_switch() -> None:
    text = system(
        cpu(
            0,
            switch(switch(gpu(A, 0), gpu(B, 1), nic("0000:0c:00.0", "mlx5_0")), gpu(C, 2)),
            gpu(D, 3),
        ),
        cpu(1, gpu("0000:8a:00.0", 4), nic("0000:8b:00.0", "mlx5_1", "mlx5_1", "mlx5_2")),
    )
    topology = parse_nccl(text, NODE).topology
    pairs = combinations(range(5), 2)
    notes = {(a, b): link(topology, a, b).pcie.name for a, b in pairs}
    assert notes == {
        (0, 1): "PIX",
        (0, 2): "PXB",
        (1, 2): "PXB",
        (0, 3): "NODE",
        (1, 3): "NODE",
        (2, 3): "NODE",
        (0, 4): "SYS",
        (1, 4): "SYS",
        (2, 4): "SYS",
        (3, 4): "SYS",
    }
    nics = {one.name: [kind.name for _, kind in one.distances] for one in topology.nics}
    assert nics == {
        "mlx5_0": ["PIX", "PIX", "PXB", "NODE", "SYS"],
        "mlx5_1": ["SYS", "SYS", "SYS", "SYS", "NODE"],
        "mlx5_2": ["SYS", "SYS", "SYS", "SYS", "NODE"],
    }
    assert [one.numa_node for one in topology.nics] == [0, 1, 1]


class TestNvlinks:
    def test_into_switches(self) -> None:
        """Six switches with two links each: the attachment is their sum, the smaller end counts."""
        full = [nvlink(f"0000:c{i}:00.0", 2, "0x068000") for i in range(6)]
        text = system(cpu(0, gpu(A, 0, *full), gpu(B, 1, *full), gpu(C, 2, *full[:5]), gpu(D, 3)))
        found = parse_nccl(text, NODE, product="NVIDIA A100-SXM4-40GB").topology
        assert link(found, 0, 1) == Link(0, 1, LinkKind.NODE, 12, Via.SWITCH, GBps(25.0))
        assert link(found, 1, 2).nvlinks == 10
        assert link(found, 0, 3) == Link(0, 3, LinkKind.NODE)

    def test_between_gpus(self) -> None:
        text = system(
            cpu(0, gpu(A, 0, nvlink(B, 2), nvlink(C, 1)), gpu(B, 1, nvlink(A, 2))),
            cpu(1, gpu(C, 2, nvlink(f"0000{A}", 1))),
        )
        found = parse_nccl(text, NODE, product="Tesla V100-SXM2-16GB").topology
        assert link(found, 0, 1) == Link(0, 1, LinkKind.NODE, 2, Via.DIRECT, GBps(25.0))
        assert link(found, 0, 2) == Link(0, 2, LinkKind.SYS, 1, Via.DIRECT, GBps(25.0))
        assert link(found, 1, 2).nvlinks == 0

    def test_links_to_a_gpu_without_attributes(self) -> None:
        text = system(cpu(0, gpu(A, 0, nvlink(B, 4)), gpu(B, None)))
        assert parse_nccl(text, NODE).topology.links[0].nvlinks == 4

    def test_elsewhere(self) -> None:
        lost = [nvlink(D, 1), nvlink("0000:00:01.0", 2, "0x068001")]
        found = parse_nccl(system(cpu(0, gpu(A, 0, *lost), gpu(B, 1))), NODE)
        notes = str(found.findings)
        assert (
            "1 NVLinks of GPU0 lead to '0000:4c:00.0', which is not a GPU in this file: not counted"
            in notes
        )
        assert "2 NVLinks of GPU0 lead to '0000:00:01.0'" in notes
        assert found.topology.links == (Link(0, 1, LinkKind.NODE),)

    def test_more_than_the_product_has(self) -> None:
        text = system(cpu(0, gpu(A, 0, nvlink(B, 12)), gpu(B, 1, nvlink(A, 12))))
        found = parse_nccl(text, NODE, product="Tesla V100-SXM2-16GB")
        assert found.topology.links[0].nvlink_one_way == GBps(0.0)
        assert "check the product" in str(found.findings)


class TestNumbers:
    def test_dev(self) -> None:
        gpus = parse_nccl(system(cpu(0, gpu(A, 3), gpu(B, 1))), NODE).topology.gpus
        assert [(one.index, one.pci_bus_id) for one in gpus] == [(1, B), (3, A)]

    def test_bus_ids(self) -> None:
        found = parse_nccl(system(cpu(1, gpu(C, None)), cpu(0, gpu(B, 1), gpu(A, None))), NODE)
        assert [one.pci_bus_id for one in found.topology.gpus] == [A, B, C]
        assert [one.numa_node for one in found.topology.gpus] == [0, 0, 1]
        assert "not every GPU has a dev number, so they are numbered by bus id" in str(
            found.findings
        )

    def test_long_bus_ids(self) -> None:
        (one,) = parse_nccl(system(cpu(0, gpu("00000000:8A:00.0", 0))), NODE).topology.gpus
        assert one.pci_bus_id == "0000:8a:00.0"

    def test_no_numa(self) -> None:
        assert parse_nccl(system(cpu(-1, gpu(A, 0))), NODE).topology.gpus[0].numa_node is None


class TestNics:
    def test_without_name(self) -> None:
        bare = '<pci busid="0000:0c:00.0" class="0x020000"/>'
        found = parse_nccl(system(cpu(0, gpu(A, 0), bare)), NODE)
        assert [one.name for one in found.topology.nics] == ["0000:0c:00.0"]
        assert "named by its bus id '0000:0c:00.0'" in str(found.findings)

    def test_on_the_cpu_itself(self) -> None:
        bare = '<nic><net name="rdma0" guid="0x1"/></nic>'
        (one,) = parse_nccl(system(cpu(0, gpu(A, 0), bare)), NODE).topology.nics
        assert one.distances == ((0, LinkKind.NODE),)

    def test_no_guid_is_no_rdma(self) -> None:
        bare = '<nic><net name="eth0" guid="0x0"/></nic>'
        found = parse_nccl(system(cpu(0, gpu(A, 0), bare)), NODE)
        assert not found.topology.nics
        assert "'eth0' has no GUID, so it is not an RDMA NIC and is left out" in str(found.findings)

    @pytest.mark.parametrize(
        ("attributes", "why"),
        [
            pytest.param('dev="3" port="0" guid="0x3" gdr="0"', "has port 0", id="a socket"),
            pytest.param('dev="3" port="0" guid="0x3" gdr="1"', "has port 0", id="GPUDirect-TCP"),
            pytest.param('dev="3" guid="0x3" gdr="0"', "has its own number", id="older socket"),
            pytest.param('dev="10" guid="0xa" gdr="0"', "has its own number", id="by hex"),
            pytest.param('dev="3" port="1" guid="0x0"', "has no GUID", id="GUID of zeros"),
            pytest.param('dev="3"', "has neither GUID nor port", id="nothing said"),
            pytest.param('dev="3" gdr="0"', "has neither GUID nor port", id="no GPUDirect"),
            pytest.param('dev="0" port="1" guid="0x9a00" gdr="1"', "", id="an HCA"),
            pytest.param('dev="0" port="1" guid="0x9a00" gdr="0"', "", id="without GPUDirect"),
            pytest.param('dev="0" port="2" guid="0x9a00"', "", id="second port"),
            pytest.param('dev="0" port="1" gdr="1"', "", id="a port, no GUID"),
            pytest.param('dev="0" gdr="1"', "", id="GPUDirect, no more said"),
        ],
    )
    def test_kernel_interfaces_are_no_rdma(self, attributes: str, why: str) -> None:
        net = f'<nic><net name="some0" {attributes}/></nic>'
        found = parse_nccl(system(cpu(0, gpu(A, 0), net)), NODE)
        assert len(found.topology.nics) == (not why)
        assert (f"'some0' {why}" in str(found.findings)) == bool(why)

    def test_one_interface_under_every_cpu(self) -> None:
        bridge = '<nic><net name="docker0" dev="0" port="0" guid="0x0" gdr="0"/></nic>'
        found = parse_nccl(system(cpu(0, gpu(A, 0), bridge), cpu(1, gpu(B, 1), bridge)), NODE)
        assert not found.topology.nics


class TestOtherVendors:
    """RCCL, AMD's NCCL, writes the same file; its xGMI links have no place in a record."""

    AMD = "a GPU of vendor AMD (0x1002): only NVIDIA's GPUs and NVLinks are supported"

    def test_by_the_vendor(self) -> None:
        text = system(cpu(0, gpu(A, 0), gpu(B, 1, vendor="0x1002")))
        assert refusal(text) == f"line 2, {B}: {self.AMD}"

    @pytest.mark.parametrize("sign", [' gcn="910"/>', '><xgmi target="x" count="1"/></gpu>'])
    def test_without_a_vendor(self, sign: str) -> None:
        one = f'<pci busid="{A}" class="0x038000"><gpu dev="0"{sign}</pci>'
        assert refusal(system(cpu(0, one))) == f"line 2, {A}: {self.AMD}"

    def test_one_that_is_not_known(self) -> None:
        message = refusal(system(cpu(0, gpu(A, 0, vendor="0xabcd"))))
        assert message.startswith(f"line 2, {A}: a GPU of vendor '0xabcd': only NVIDIA's")


class TestPartsOfOneGpu:
    """MLOPart: NCCL sees several parts of a GPU, and each tells all the GPU's NVLinks."""

    @staticmethod
    def parts(first: int, second: int, dev: int = 0) -> str:
        links = [nvlink("0000:c0:00.0", count, "0x068000") for count in (first, second)]
        both = f'<gpu dev="0">{links[0]}</gpu><gpu dev="{dev}">{links[1]}</gpu>'
        one = f'<pci busid="{A}" class="0x030200" vendor="0x10de">{both}</pci>'
        return system(cpu(0, one, gpu(B, 1, nvlink("0000:c0:00.0", 36, "0x068000"))))

    def test_are_one_gpu_and_its_links_count_once(self) -> None:
        found = parse_nccl(self.parts(36, 36), NODE)
        assert len(found.topology.gpus) == 2
        assert found.topology.links == (Link(0, 1, LinkKind.NODE, 36, Via.SWITCH),)
        assert "2 <gpu> in one <pci>: read as parts of one GPU" in str(found.findings)

    def test_that_differ_are_refused(self) -> None:
        other = "of the <gpu> on line 2 of the same <pci>"
        assert refusal(self.parts(36, 18)) == f"line 2, {A}: the NVLinks differ from those {other}"
        assert (
            refusal(self.parts(36, 36, dev=3))
            == f"line 2, {A}: the dev number differs from that {other}"
        )

    def test_more_nvlinks_than_a_record_takes(self) -> None:
        text = system(cpu(0, gpu(A, 0, nvlink(B, 65)), gpu(B, 1, nvlink(A, 65))))
        assert refusal(text) == "line 1, GPU0/GPU1: 65 NVLinks, at most 64 are allowed"


COLLECTED = {
    # GPUs, NICs, NVLinks of GPU0 and GPU1, NUMA nodes; or why it is refused.
    "gvisor-b200x8": (8, 13, 18, "00001111"),
    "ibm-h100-vsi": (8, 8, 18, "00001111"),
    "zy-uestc_yccl__topo_h800": (8, 8, 8, "00001111"),
    "zy-uestc_yccl__topo": (4, 0, 0, "0011"),
    "gb10-spark-nccl-pr2202": (1, 0, 0, "-"),
    "vr200-mlopart-snippet-in-system": (2, 0, 36, "00"),
    "rccl-topo_16p1h": "line 10, 0000:4e:00.0: a GPU of vendor AMD (0x1002)",
    "rccl-topo_4p1h": "line 9, 0000:1d:00.0: a GPU of vendor AMD (0x1002)",
    "aws-g5.48xl": "line 12: no NVIDIA GPU found",
}


class TestCollected:
    def test_every_file_is_in_the_table(self) -> None:
        files = {path.stem for path in recorded.shared("fixtures/pasted/xml").glob("*.xml")}
        assert files == COLLECTED.keys()

    @pytest.mark.parametrize("name", COLLECTED)
    def test_gives(self, name: str) -> None:
        text = (recorded.shared("fixtures/pasted/xml") / f"{name}.xml").read_text(encoding="utf-8")
        expected = COLLECTED[name]
        if isinstance(expected, str):
            assert refusal(text).startswith(expected)
            return
        gpus, nics, nvlinks, numa = expected
        topology = read(text, NODE).topology
        assert (len(topology.gpus), len(topology.nics)) == (gpus, nics)
        assert "".join("-" if g.numa_node is None else str(g.numa_node) for g in topology.gpus) == (
            numa
        )
        assert gpus == 1 or link(topology, 0, 1).nvlinks == nvlinks
        assert all(nic.name.startswith("mlx5_") for nic in topology.nics)
        assert codec.decode(codec.encode(topology), strict=True).topology == topology

    def test_hwloc_is_named(self) -> None:
        text = (recorded.shared("fixtures/hwloc") / "nvidiaDGX2.xml").read_text(encoding="utf-8")
        with pytest.raises(SourceError, match=r"this is hwloc's file \(lstopo\)"):
            read(text, NODE)


def test_other_displays_are_left_out() -> None:
    text = system(cpu(0, gpu(A, 0), gpu(B, None, vendor="0x1a03")))
    found = parse_nccl(text, NODE)
    assert len(found.topology.gpus) == 1
    assert "a display of vendor '0x1a03': left out" in str(found.findings)


def test_xml_within_a_paste() -> None:
    text = f"Our dump:\n```xml\n{PAIR}\n```\n"
    found = read(text, NODE)
    assert found.topology == parse_nccl(PAIR, NODE).topology
    assert found.findings[0].line == 3
    with pytest.raises(SourceError, match="broken XML"):
        read(f"two\n{PAIR}\n{PAIR}\n", NODE)


def test_read_picks_by_content() -> None:
    text = f"\ufeff\n  <!-- static file -->\n{PAIR}"
    assert read(text, NODE).topology == parse_nccl(PAIR, NODE).topology
    assert read(text, NODE).findings[0].line == 3


BOMB = (
    '<?xml version="1.0"?>\n<!DOCTYPE system [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>\n'
    "<system>&b;</system>"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("<system>\n<cpu>", "line 2: broken XML: no element found", id="cut"),
        pytest.param("\n\n<system>\n</cpu>", "line 4: broken XML: mismatched tag", id="mismatched"),
        pytest.param("<system>\x00", "line 1: broken XML: not well-formed", id="no XML"),
        pytest.param(BOMB, "line 2: a DOCTYPE is not allowed, and NCCL writes none", id="entities"),
        pytest.param(
            "<nvidia_smi_log/>",
            "line 1: the root element is 'nvidia_smi_log', but NCCL's",
            id="foreign",
        ),
        pytest.param(system(cpu(0)), "line 1: no NVIDIA GPU found: there is neither", id="no GPU"),
        pytest.param(
            system(gpu(A, 0)), "line 2, pci: is outside every <cpu>", id="GPU without CPU"
        ),
        pytest.param(
            system(cpu(0, gpu(A, 0)), cpu(1, gpu(A, 1))),
            "line 3, 0000:07:00.0: this GPU is already on line 2",
            id="GPU twice",
        ),
        pytest.param(
            system(cpu(0, gpu(A, 0)), cpu(1, gpu(B, 0))),
            "line 3, 0000:0b:00.0: dev 0 is already used on line 2",
            id="dev twice",
        ),
        pytest.param(
            system(cpu(0, gpu("", 0))), "line 2, pci: a GPU has no busid", id="GPU without bus id"
        ),
        pytest.param(
            PAIR.replace('dev="1"', 'dev="one"'), "line 2, gpu: dev='one' is not a number", id="dev"
        ),
        pytest.param(
            system(cpu(0, gpu(A, 0, nvlink(B, "many")), gpu(B, 1))),
            "line 2, nvlink: count='many' is not a number",
            id="count",
        ),
        pytest.param(
            system(cpu(0, gpu(A, 0, nvlink(B, 2))), cpu(1, gpu(B, 1, nvlink(A, 1)))),
            "line 2, GPU0/GPU1: 2 NVLinks in one direction, but 1 in the other (line 3)",
            id="asymmetric",
        ),
        pytest.param(
            system(cpu(0, gpu(A, 0)), cpu(1, gpu(B, 1, nvlink(A, 1)))),
            "line 3, GPU0/GPU1: 0 NVLinks in one direction, but 1 in the other",
            id="one-sided",
        ),
        pytest.param(
            system(cpu(0, gpu(A, 0), nic(B, "n"), nic(C, "n"))),
            "line 2, n: this NIC is already on line 2",
            id="NIC twice",
        ),
        pytest.param(
            system(cpu(0, gpu(A, 0), '<nic><net guid="0x9a"/></nic>')),
            "line 2, net: a NIC has no name",
            id="NIC without name",
        ),
        pytest.param(
            PAIR.replace("<cpu ", '<cpu host_hash="0x1" ').replace("</system>", "<cpu/></system>"),
            "line 1: the CPUs have several host_hash values; give the file of one machine",
            id="several hosts",
        ),
        pytest.param(
            system(cpu(0, gpu(A, 0)), cpu(1, gpu(B, 1)), cpu(0, gpu(C, 2))),
            "line 4, cpu: numaid '0' is already used on line 2; give the text of one machine",
            id="several machines",
        ),
        pytest.param(
            system(cpu(0, *(gpu(f"0000:{i:04x}:00.0", i) for i in range(300)))),
            "line 1: 300 GPUs; at most 256 are allowed",
            id="too many GPUs",
        ),
        pytest.param(
            system(cpu(0, *(gpu(f"0000:{i:04x}:00.0", i) for i in range(65)))),
            "line 1: devices: 65 GPUs, but at most 64 are allowed",
            id="more GPUs than the model takes",
        ),
        pytest.param("<system>" + "<a>" * 100, "line 1, a: nested deeper than 64", id="deep"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    assert refusal(text).startswith(message)
