"""The table of machines, by generation. :mod:`topology.machines.notation` explains the notation.

``source`` names the source of the figures. Most public matrices print ``NV#`` for an NVLinked pair
and so hide its PCIe class. If ``source`` says *tree:*, that class is from the named place. If it
says *tree assumed*, the class is from the usual build of such a server. PCI addresses are known for
DGX systems and cloud shapes. For other machines they are only plausible. So are the CPUs.
"""

from collections.abc import Mapping
from types import MappingProxyType

from topology.machines.notation import Card, Machine, all_to_all, drawn, groups, switched

# NVML's total memory as drivers since R510 report it. Earlier drivers left the reserved part out
# (a V100 16GB showed 16160 MiB, a P100 16276, a TITAN V 12066, a DGX A100's GPU 40536). Source:
# nvidia-smi of the machines below.
K80 = Card("Tesla K80", 11441)
P100 = Card("Tesla P100-SXM2-16GB", 16384)
V100 = Card("Tesla V100-SXM2-16GB", 16384)
V100_32 = Card("Tesla V100-SXM2-32GB", 32768)
V100_SXM3 = Card("Tesla V100-SXM3-32GB", 32768)
V100_PCIE = Card("Tesla V100-PCIE-16GB", 16384)
TITAN_V = Card("NVIDIA TITAN V", 12288)
T4 = Card("Tesla T4", 15360)
A100 = Card("NVIDIA A100-SXM4-40GB", 40960)
A100_80 = Card("NVIDIA A100-SXM4-80GB", 81920)
A100_PCIE = Card("NVIDIA A100 80GB PCIe", 81920)
A800 = Card("NVIDIA A800-SXM4-80GB", 81920)
A30 = Card("NVIDIA A30", 24576)
A10 = Card("NVIDIA A10", 23028)
A6000 = Card("NVIDIA RTX A6000", 49140)
RTX_3090 = Card("NVIDIA GeForce RTX 3090", 24576)
L40S = Card("NVIDIA L40S", 46068)
RTX_4090 = Card("NVIDIA GeForce RTX 4090", 24564)
H100 = Card("NVIDIA H100 80GB HBM3", 81559)
H100_PCIE = Card("NVIDIA H100 PCIe", 81559)
H100_NVL = Card("NVIDIA H100 NVL", 95830)
H800 = Card("NVIDIA H800", 81559)
H200 = Card("NVIDIA H200", 143771)
H20 = Card("NVIDIA H20", 97871)
GH200 = Card("NVIDIA GH200 480GB", 97871)
B200 = Card("NVIDIA B200", 183359)
GB200 = Card("NVIDIA GB200", 189471)
RTX_PRO_6000 = Card("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887)
RTX_5060_TI = Card("NVIDIA GeForce RTX 5060 Ti", 16311)

# The hybrid cube mesh: two fully linked quads (the cube's top and bottom, with diagonals) and
# four edges between them. A V100 has six links and four linked pairs, so two of its pairs have two
# links each.
CUBE_MESH = drawn(
    "X1122...",
    "1X21.2..",
    "12X2..1.",
    "212X...1",
    "2...X112",
    ".2..1X21",
    "..1.12X2",
    "...1212X",
)
# The same mesh for a P100, which has four links: every linked pair has one.
CUBE_MESH_P100 = drawn(
    "X1111...",
    "1X11.1..",
    "11X1..1.",
    "111X...1",
    "1...X111",
    ".1..1X11",
    "..1.11X1",
    "...1111X",
)

DGX1_BUS = "mlx5_0 PIX 0 PIX 1 PHB mlx5_1 PIX 2 PIX 3 SYS mlx5_2 PIX 4 PIX 5 PHB mlx5_3 PIX 6 PIX 7"
DGX1_ADDRESSES = "06 07 0a 0b 85 86 89 8a"

DGX_A100_BUS = (
    "mlx5_0 PXB mlx5_1 PXB 0 PXB 1 SYS mlx5_2 PXB mlx5_3 PXB 2 PXB 3 SYS mlx5_4 PIX mlx5_5 SYS"
    " mlx5_6 PXB mlx5_7 PXB 4 PXB 5 SYS mlx5_8 PXB mlx5_9 PXB 6 PXB 7 SYS mlx5_10 PIX mlx5_11"
)
DGX_A100_ADDRESSES = "07 0f 47 4e 87 90 b7 bd"

# A ConnectX-7 near every GPU, and one two-port adapter per socket for storage.
DGX_H100_BUS = (
    "mlx5_0 PXB 0 NODE mlx5_1 PIX mlx5_2 NODE mlx5_3 PXB 1 NODE mlx5_4 PXB 2 NODE mlx5_5 PXB 3"
    " SYS"
    " mlx5_6 PXB 4 NODE mlx5_7 PIX mlx5_8 NODE mlx5_9 PXB 5 NODE mlx5_10 PXB 6 NODE mlx5_11 PXB 7"
)
DGX_H100_ADDRESSES = "1b 43 52 61 9d c3 d1 df"

TWO_BY_TWO = "0 NODE 1 SYS 2 NODE 3"
TWO_BY_FOUR = "0 NODE 1 NODE 2 NODE 3 SYS 4 NODE 5 NODE 6 NODE 7"

_CATALOGUE = (
    # --- Kepler, Pascal ---------------------------------------------------------------------
    Machine(
        name="k80-4",
        description="cloud VM with two K80 boards (four GPUs), PCIe only",
        card=K80,
        pcie="0 NODE 1 NODE 2 NODE 3",
        numa="0000",
        cpus="1x24x1",
        buses="0001:00:00.0 0002:00:00.0 0003:00:00.0 0004:00:00.0",
        source="topo matrix in the HiveD user manual (an Azure VM; it hides the boards)",
    ),
    Machine(
        name="dgx1-p100",
        description="NVIDIA DGX-1 (Pascal): hybrid cube mesh, one NVLink per linked pair",
        card=P100,
        nvlink=CUBE_MESH_P100,
        pcie=DGX1_BUS,
        numa="00001111",
        cpus="2x20x2",
        buses=DGX1_ADDRESSES,
        source="public topo matrix of one; tree: its NIC columns and the DGX-1 white paper",
    ),
    # --- Volta ------------------------------------------------------------------------------
    Machine(
        name="dgx1-v100",
        description="NVIDIA DGX-1 (Volta): hybrid cube mesh, one or two NVLinks per linked pair",
        card=V100,
        nvlink=CUBE_MESH,
        pcie=DGX1_BUS,
        numa="00001111",
        cpus="2x20x2",
        buses=DGX1_ADDRESSES,
        source="topo matrix in microsoft/sccl's tests; tree: its NIC columns, DGX-1 white paper",
    ),
    Machine(
        name="p3.16xlarge",
        description="AWS p3.16xlarge: a DGX-1V's cube mesh in a VM that hides the PCIe tree",
        card=V100,
        nvlink=CUBE_MESH,
        pcie="0 PHB 1 PHB 2 PHB 3 PHB 4 PHB 5 PHB 6 PHB 7",
        numa="--------",
        cpus="2x16x2",
        buses="00:17.0 00:18.0 00:19.0 00:1a.0 00:1b.0 00:1c.0 00:1d.0 00:1e.0",
        source="public topo matrix of such a VM: PHB for every pair without NVLink",
    ),
    Machine(
        name="p3.8xlarge",
        description="AWS p3.8xlarge: one quad of the cube mesh",
        card=V100,
        nvlink=drawn("X112", "1X21", "12X2", "212X"),
        pcie="0 PHB 1 PHB 2 PHB 3",
        numa="----",
        cpus="1x16x2",
        buses="00:1b.0 00:1c.0 00:1d.0 00:1e.0",
        source="public topo matrix (NUMA N/A); tree: as p3.16xlarge, all on the VM's one bus",
    ),
    Machine(
        name="v100-sxm2-4",
        description="four V100 on one SXM2 board, two NVLinks between any two",
        card=V100_32,
        nvlink=all_to_all(2),
        pcie="mlx5_0 PIX 0 PIX 1 SYS mlx5_1 PIX 2 PIX 3",
        numa="0011",
        cpus="2x24x2",
        buses="1c 1d 88 89",
        source="public topo matrix of a Santos Dumont node; tree: its NIC columns",
    ),
    Machine(
        name="ac922-6",
        description="IBM AC922 with six V100 (Summit): two NVLinked triples, no NVLink between",
        card=V100,
        nvlink=groups(3, 2),
        pcie="0 PIX 1 PIX 2 SYS 3 PIX 4 PIX 5",
        numa="000888",
        # 2x22x4 on NUMA nodes 0 and 8; the GPUs' memory is on 250 to 255. A record numbers NUMA
        # nodes from 0 without gaps, and the Topology Manager can name none above 63.
        cpus="",
        buses="0004:04:00.0 0004:05:00.0 0004:06:00.0 0035:03:00.0 0035:04:00.0 0035:05:00.0",
        source="topo matrix of one socket in a Linux patch (GV100 on powernv); NUMA nodes: hwloc's"
        " test nvidiagpunumanodes (8335-GTW); tree: bus numbers",
    ),
    Machine(
        name="dgx2",
        description="NVIDIA DGX-2: sixteen V100 on twelve NVSwitches",
        card=V100_SXM3,
        nvlink=switched(6),
        pcie=(
            "0 PIX 1 PIX mlx5_0 PXB 2 PIX 3 PIX mlx5_1 NODE 4 PIX 5 PIX mlx5_2 PXB 6 PIX 7 PIX"
            " mlx5_3 SYS mlx5_4 PIX mlx5_5 NODE 8 PIX 9 PIX mlx5_6 PXB 10 PIX 11 PIX mlx5_7 NODE"
            " 12 PIX 13 PIX mlx5_8 PXB 14 PIX 15 PIX mlx5_9"
        ),
        numa="0000000011111111",
        cpus="2x24x2",
        buses="34 36 39 3b 57 59 5c 5e b7 b9 bc be e0 e2 e5 e7",
        source="NVIDIA/nccl-tests#78; tree: hwloc's DGX-2 description, second socket's NICs by"
        " bus numbers",
    ),
    Machine(
        name="v100-pcie-4",
        description="four PCIe V100 under one switch (Dell C4140 class)",
        card=V100_PCIE,
        pcie="0 PIX 1 PIX 2 PIX 3",
        numa="0000",
        cpus="2x20x2",
        buses="18 3b 86 af",
        source="Dell's description of the C4140, configuration B; no matrix seen",
    ),
    Machine(
        name="titanv-8",
        description="eight TITAN V: switch pairs below host bridges, two sockets",
        card=TITAN_V,
        pcie="0 PIX 1 PHB 2 PIX 3 SYS 4 PIX 5 PHB 6 PIX 7",
        numa="00001111",
        cpus="2x10x2",
        buses="04 05 08 09 84 85 88 89",
        source="public topo matrix",
    ),
    # --- Turing -----------------------------------------------------------------------------
    Machine(
        name="t4-1",
        description="one T4",
        card=T4,
        pcie="0",
        numa="-",
        cpus="1x2x2",
        buses="00:1e.0",
        source="AWS g4dn.xlarge",
    ),
    Machine(
        name="t4-4",
        description="four T4 in a VM (AWS g4dn.12xlarge)",
        card=T4,
        pcie="0 PHB 1 PHB 2 PHB 3",
        numa="0000",
        cpus="1x24x2",
        buses="00:1b.0 00:1c.0 00:1d.0 00:1e.0",
        source="tree assumed: all on the VM's one bus, as p3.8xlarge",
    ),
    # --- Ampere -----------------------------------------------------------------------------
    Machine(
        name="dgx-a100",
        description="NVIDIA DGX A100 320GB: NVSwitch, four NUMA quadrants with a pair each",
        card=A100,
        nvlink=switched(12),
        pcie=DGX_A100_BUS,
        numa="33117755",
        cpus="2x64x2/4",
        buses=DGX_A100_ADDRESSES,
        source="NVIDIA/nccl#1505; tree: its NIC columns and NUMA ids (NPS4)",
    ),
    Machine(
        name="dgx-a100-80",
        description="NVIDIA DGX A100 640GB",
        card=A100_80,
        nvlink=switched(12),
        pcie=DGX_A100_BUS,
        numa="33117755",
        cpus="2x64x2/4",
        buses=DGX_A100_ADDRESSES,
        source="as dgx-a100",
    ),
    Machine(
        name="p4d.24xlarge",
        description="AWS p4d.24xlarge: NVSwitch, an EFA adapter per pair",
        card=A100,
        nvlink=switched(12),
        pcie=(
            "rdmap16s27 PIX 0 PIX 1 NODE rdmap32s27 PIX 2 PIX 3"
            " SYS"
            " rdmap144s27 PIX 4 PIX 5 NODE rdmap160s27 PIX 6 PIX 7"
        ),
        numa="00001111",
        cpus="2x24x2",
        buses="10:1c.0 10:1d.0 20:1c.0 20:1d.0 90:1c.0 90:1d.0 a0:1c.0 a0:1d.0",
        source="public topo matrix; tree: AWS's topology file for NCCL (the VM hides the switches)",
    ),
    Machine(
        name="nd96asr-v4",
        description="Azure ND96asr_v4: NVSwitch, two InfiniBand adapters per pair",
        card=A100,
        nvlink=switched(12),
        pcie=(
            "mlx5_0 PIX 0 PIX mlx5_1 PIX 1 SYS mlx5_2 PIX 2 PIX mlx5_3 PIX 3 SYS"
            " mlx5_4 PIX 4 PIX mlx5_5 PIX 5 SYS mlx5_6 PIX 6 PIX mlx5_7 PIX 7"
        ),
        numa="11003322",
        cpus="2x48x1/2",
        buses=(
            "0001:00:00.0 0002:00:00.0 0003:00:00.0 0004:00:00.0"
            " 000b:00:00.0 000c:00:00.0 000d:00:00.0 000e:00:00.0"
        ),
        source="tree: Azure's topology file for NCCL (the VM hides the switches)",
    ),
    Machine(
        name="hgx-a100-4",
        description="HGX A100 4-GPU (Redstone), two sockets: four NVLinks between any two",
        card=A100_80,
        nvlink=all_to_all(4),
        pcie="mlx5_0 NODE 0 NODE 1 SYS 2 NODE 3",
        numa="0011",
        cpus="2x24x2",
        buses="17 31 b1 ca",
        source="topo matrix in PrincetonUniversity/gpu_programming_intro; tree: its NIC column",
    ),
    Machine(
        name="hgx-a100-4-nps4",
        description="HGX A100 4-GPU on one EPYC in four NUMA nodes (Polaris)",
        card=A100,
        nvlink=all_to_all(4),
        pcie="0 SYS mlx5_1 PHB 1 SYS 2 SYS mlx5_0 PHB 3",
        numa="3210",
        cpus="1x32x2/4",
        buses="07 46 85 c7",
        source="topo matrix in the Polaris user guide; tree: its NIC columns and NUMA ids",
    ),
    Machine(
        name="hgx-a800-8",
        description="HGX A800: NVSwitch with eight links per GPU, bonded adapters",
        card=A800,
        nvlink=switched(8),
        pcie=(
            "mlx5_bond_0 PIX mlx5_bond_1 PIX 0 PIX 1 NODE mlx5_bond_2 PIX mlx5_bond_3 PIX 2 PIX 3"
            " SYS"
            " mlx5_bond_4 PIX mlx5_bond_5 PIX 4 PIX 5 NODE mlx5_bond_6 PIX mlx5_bond_7 PIX 6 PIX 7"
        ),
        numa="00001111",
        cpus="2x32x2",
        buses="26 2c 66 6b a5 aa e1 e6",
        source="public topo matrix; tree: its NIC columns",
    ),
    Machine(
        name="a100-pcie-4-bridged",
        description="four PCIe A100 80GB, three NVLink bridges (twelve links) per pair",
        card=A100_PCIE,
        nvlink=groups(2, 12),
        pcie=TWO_BY_TWO,
        numa="0011",
        cpus="2x32x2",
        buses="27 38 a8 b8",
        source="public topo matrix; tree: bus numbers (a root port each)",
    ),
    Machine(
        name="a30-4-bridged",
        description="four A30, one NVLink bridge (four links) per pair",
        card=A30,
        nvlink=groups(2, 4),
        pcie=TWO_BY_TWO,
        numa="0011",
        cpus="2x24x2",
        buses="17 65 ca e3",
        source="NVIDIA's A30 data sheet; tree assumed, as a100-pcie-4-bridged",
    ),
    Machine(
        name="a10-1",
        description="one A10",
        card=A10,
        pcie="0",
        numa="0",
        cpus="1x2x2",
        buses="00:1e.0",
        source="NVIDIA's A10 data sheet",
    ),
    Machine(
        name="a6000-4-bridged",
        description="four RTX A6000, one NVLink bridge (four links) per pair",
        card=A6000,
        nvlink=groups(2, 4),
        pcie=TWO_BY_TWO,
        numa="0011",
        cpus="2x24x2",
        buses="17 65 ca e3",
        source="public topo matrix with the model unnamed (RTX A6000 class); tree assumed",
    ),
    Machine(
        name="rtx3090-2-bridged",
        description="desktop with two RTX 3090 and an NVLink bridge",
        card=RTX_3090,
        nvlink=groups(2, 4),
        pcie="0 PHB 1",
        numa="00",
        cpus="1x12x2",
        buses="08 09",
        source="public topo matrix (Ryzen 5900X); tree: both slots on the CPU's one host bridge",
    ),
    Machine(
        name="rtx3090-4-bridged",
        description="one-socket server with four RTX 3090, an NVLink bridge per pair",
        card=RTX_3090,
        nvlink=groups(2, 4),
        pcie="0 NODE 1 NODE 2 NODE 3",
        numa="0000",
        cpus="1x32x2",
        buses="01 41 81 c1",
        source="bridge as rtx3090-2-bridged; tree assumed: a root complex per slot (EPYC)",
    ),
    # --- Ada --------------------------------------------------------------------------------
    Machine(
        name="l40s-4",
        description="four L40S on two sockets, adapters on the second",
        card=L40S,
        pcie="0 NODE 1 SYS mlx5_0 PIX mlx5_1 NODE 2 NODE 3",
        numa="0011",
        cpus="2x32x2",
        buses="01 41 81 c1",
        source="topo matrix in warpem/miss-alignment#106",
    ),
    Machine(
        name="l40s-8",
        description="eight L40S on two sockets, a root port each",
        card=L40S,
        pcie=TWO_BY_FOUR,
        numa="00001111",
        cpus="2x32x2",
        buses="01 21 41 61 81 a1 c1 e1",
        source="tree assumed: as rtx4090-8",
    ),
    Machine(
        name="rtx4090-8",
        description="eight RTX 4090 on two sockets, a root port each",
        card=RTX_4090,
        pcie=TWO_BY_FOUR,
        numa="00001111",
        cpus="2x32x2",
        buses="01 21 41 61 81 a1 c1 e1",
        source="public topo matrix (EPYC)",
    ),
    Machine(
        name="rtx4090-8-allsys",
        description="eight RTX 4090; the platform reports SYS between all, even in one socket",
        card=RTX_4090,
        pcie="0 SYS 1 SYS 2 SYS 3 SYS 4 SYS 5 SYS mlx5_0 PIX mlx5_1 PHB 6 SYS 7",
        numa="00001111",
        cpus="2x32x2",
        buses="16 27 38 5a 98 a8 b8 d8",
        source="topo matrix in NVIDIA/go-gpuallocator#17",
        numa_note="this platform reports SYS between root ports of one socket",
    ),
    # --- Hopper -----------------------------------------------------------------------------
    Machine(
        name="h100-pcie-1",
        description="one PCIe H100",
        card=H100_PCIE,
        pcie="0",
        numa="0",
        cpus="1x32x2",
        buses="17",
        source="NVIDIA's H100 data sheet",
    ),
    Machine(
        name="h100-nvl-4-bridged",
        description="four H100 NVL, three NVLink bridges (twelve links) per pair",
        card=H100_NVL,
        nvlink=groups(2, 12),
        pcie=TWO_BY_TWO,
        numa="0011",
        cpus="2x32x2",
        buses="17 65 ca e3",
        source="NVIDIA's H100 NVL product brief; tree assumed, as a100-pcie-4-bridged",
    ),
    Machine(
        name="hgx-h100-4",
        description="HGX H100 4-GPU: six NVLinks between any two, a NUMA node and an adapter each",
        card=H100,
        nvlink=all_to_all(6),
        pcie="0 PIX mlx5_0 SYS 1 PIX mlx5_1 SYS 2 PIX mlx5_2 SYS 3 PIX mlx5_3",
        numa="3175",
        cpus="2x32x2/4",
        buses="04 44 84 c4",
        source="NVIDIA/nccl#1617; tree: its NIC columns and NUMA ids",
    ),
    Machine(
        name="hgx-h100-8",
        description="HGX H100 8-GPU server (Dell XE9680 class): NVSwitch, a switch per GPU",
        card=H100,
        nvlink=switched(18),
        pcie=(
            "0 PIX mlx5_0 PIX mlx5_1 PIX mlx5_2 NODE 1 PIX mlx5_3 NODE 2 PIX mlx5_4 NODE"
            " 3 PIX mlx5_5 SYS 4 PIX mlx5_6 PIX mlx5_7 PIX mlx5_8 NODE 5 PIX mlx5_9 NODE"
            " 6 PIX mlx5_10 NODE 7 PIX mlx5_11"
        ),
        numa="00001111",
        cpus="2x48x2",
        buses="19 3b 4c 5d 9b bb cb db",
        source="public topo matrix; tree: `nvidia-smi topo -mp` of such a server",
    ),
    Machine(
        name="dgx-h100",
        description="NVIDIA DGX H100: NVSwitch, a ConnectX-7 per GPU",
        card=H100,
        nvlink=switched(18),
        pcie=DGX_H100_BUS,
        numa="00001111",
        cpus="2x56x2",
        buses=DGX_H100_ADDRESSES,
        source="topo matrix in vllm-project/vllm#6732; tree: its NIC columns, hgx-h100-8's -mp",
    ),
    Machine(
        name="hgx-h800-8",
        description="HGX H800: NVSwitch with eight links per GPU",
        card=H800,
        nvlink=switched(8),
        pcie=(
            "0 PIX mlx5_0 NODE 1 PIX mlx5_1 NODE 2 PIX mlx5_2 NODE 3 PIX mlx5_3"
            " SYS"
            " 4 PIX mlx5_4 NODE 5 PIX mlx5_5 NODE 6 PIX mlx5_6 NODE 7 PIX mlx5_7"
        ),
        numa="00001111",
        cpus="2x48x2",
        buses="19 3b 4c 5d 9b bb cb db",
        source="public topo matrix of four of its GPUs (NV8, an adapter beside each); tree assumed,"
        " as hgx-h100-8",
    ),
    Machine(
        name="hgx-h200-8",
        description="DGX or HGX H200 8-GPU: a DGX H100 with larger memory",
        card=H200,
        nvlink=switched(18),
        pcie=DGX_H100_BUS,
        numa="00001111",
        cpus="2x56x2",
        buses=DGX_H100_ADDRESSES,
        source="public topo matrix; tree: its NIC columns, hgx-h100-8's -mp",
    ),
    Machine(
        name="hgx-h20-8",
        description="HGX H20 8-GPU on AMD: NVSwitch, adapters beside GPU 6",
        card=H20,
        nvlink=switched(18),
        pcie="0 NODE 1 NODE 2 NODE 3 SYS 4 NODE 5 NODE mlx5_0 PIX mlx5_1 PHB 6 NODE 7",
        numa="00001111",
        cpus="2x96x2",
        buses="0f 34 48 5a 87 ae c2 d7",
        source="public topo matrix; tree: its NIC columns",
    ),
    Machine(
        name="gh200",
        description="Grace Hopper: one GPU (its NVLinks leave the node)",
        card=GH200,
        pcie="0",
        numa="0",
        cpus="1x72x1",
        buses="0009:01:00.0",
        source="NVIDIA's GH200 data sheet",
    ),
    # --- Blackwell --------------------------------------------------------------------------
    Machine(
        name="dgx-b200",
        description="NVIDIA DGX B200: NVSwitch, an adapter per GPU and two more per socket",
        card=B200,
        nvlink=switched(18),
        pcie=(
            "mlx5_0 PXB 0 NODE mlx5_1 PXB 1 NODE mlx5_2 PXB 2 NODE mlx5_3 PXB 3"
            " NODE mlx5_8 NODE mlx5_9 SYS"
            " mlx5_4 PXB 4 NODE mlx5_5 PXB 5 NODE mlx5_6 PXB 6 NODE mlx5_7 PXB 7"
            " NODE mlx5_10 NODE mlx5_11"
        ),
        numa="00001111",
        cpus="2x56x2",
        buses=DGX_H100_ADDRESSES,
        source="vllm-project/vllm#16336, where one GPU is off NVLink and so shows the tree",
    ),
    Machine(
        name="gb200-tray",
        description="one compute tray of a GB200 NVL72: four GPUs on the rack's NVSwitches",
        card=GB200,
        nvlink=switched(18),
        pcie=(
            "0 NODE 1 SYS 2 NODE 3 SYS"
            " mlx5_0 SYS mlx5_1 SYS mlx5_2 SYS mlx5_3 SYS mlx5_4 SYS mlx5_5"
        ),
        numa="0011",
        cpus="2x72x1",
        buses="0008:01:00.0 0009:01:00.0 0018:01:00.0 0019:01:00.0",
        source="NVIDIA/k8s-test-infra#371 and sgl-project/sglang#11208 (adapters: SYS to all);"
        " tree assumed: two GPUs on each Grace",
        rack_scale=True,
    ),
    Machine(
        name="rtxpro6000-4",
        description="four RTX PRO 6000 Blackwell in a VM",
        card=RTX_PRO_6000,
        pcie="0 PHB 1 PHB 2 PHB 3",
        numa="0000",
        cpus="1x64x1",
        buses="06 07 08 09",
        source="public topo matrix of a rented VM",
    ),
    Machine(
        name="rtx5060ti-4",
        description="desktop with four RTX 5060 Ti",
        card=RTX_5060_TI,
        pcie="0 PHB 1 PHB 2 PHB 3",
        numa="0000",
        cpus="1x16x2",
        buses="01 02 03 04",
        source="public topo matrix",
    ),
)

# Every machine by its name, by generation.
MACHINES: Mapping[str, Machine] = MappingProxyType({each.name: each for each in _CATALOGUE})
