"""NVML and sysfs through the real pynvml: what is discovered is the machine that is played."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests import recorded
from tests.fakes.nvml.machine import MigInstance
from tests.fakes.nvml.testing import fake_nvml
from tests.fakes.sysfs import write_gpus, write_sysfs
from tests.waiting import PATIENCE
from topology.agent.model.hardware import topology_of
from topology.agent.model.observations import FabricState, GpuProcess, InstanceVitals, Unseen
from topology.agent.probes.nvml import EventsFailedError, Nvml, NvmlDownError
from topology.agent.probes.sysfs import pci_tree
from topology.core.devices import MIB, Bytes, NodeName
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import LinkKind
from topology.machines import MACHINES, machine
from topology.sources import SourceError, read

NODE = NodeName("n")
CUT = {"TRUNC-dgx2-v100x16-first4rows"}  # Postings that nobody could read


def discover(sys: Path) -> tuple[NodeTopology, tuple[Unseen, ...]]:
    with Nvml() as nvml:
        return topology_of(NODE, nvml.look(), pci_tree(sys))


def bare(topology: NodeTopology) -> NodeTopology:
    """Without what only the kubelet and its plugin know."""
    return replace(topology, allocator=AllocatorConfig(), name=NODE)


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in MACHINES])
def test_every_machine_of_the_catalogue_is_discovered_as_it_is(name: str, tmp_path: Path) -> None:
    played = machine(name).topology("n")
    write_sysfs(tmp_path / "sys", played, machine(name))
    with fake_nvml(tmp_path, played).in_process():
        found, unseen = discover(tmp_path / "sys")
    expected = bare(played)
    assert found.gpus == expected.gpus
    assert found.links == expected.links
    assert found.fabric == expected.fabric
    assert {n.name for n in found.nics} == {n.name for n in expected.nics}
    if not machine(name).numa_note:  # there, sysfs and the matrix disagree in reality, too
        assert {n.name: dict(n.distances) for n in found.nics} == {
            n.name: dict(n.distances) for n in expected.nics
        }
        assert found.shape is expected.shape
    assert unseen == ()


def test_a_product_name_that_is_no_text_costs_the_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reads it from the board, and pynvml takes it for UTF-8."""
    answer = pynvml.nvmlDeviceGetName

    def name_of(handle: Any) -> str:
        if pynvml.nvmlDeviceGetIndex(handle) == 3:
            return b"Tesla \xff\xfe".decode()
        return str(answer(handle))

    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", name_of)
    with fake_nvml(tmp_path, machine("dgx1-v100").topology("n")).in_process(), Nvml() as nvml:
        seen = nvml.look()
        assert len(nvml.vitals()) == 8
        assert not any(vitals.silent for vitals in nvml.vitals())
        assert len(nvml.look().gpus) == 8
    assert seen.gpus[3].gpu.product == "unknown"
    (unseen,) = seen.unseen
    assert (unseen.fact, unseen.of) == ("product", "GPU 3")


@pytest.mark.parametrize(
    ("state", "status", "mask", "answer"),
    [
        (0, 0, 0, None),
        (3, 0, 0, FabricState(True)),
        (1, 0, 0, FabricState(False)),
        (2, 0, 0, FabricState(False)),
        (3, 999, 0, FabricState(False)),
        (3, 0, 0b0001_10_10_10_10, FabricState(True)),
        (3, 0, 0b0001_10_10_10_01, FabricState(True, degraded=True)),
        (3, 0, 0b0001_10_10_01_10, FabricState(True, recovering=True)),
        (3, 0, 0b0001_10_01_10_10, FabricState(True, route_unhealthy=True)),
        (3, 0, 0b0001_01_10_10_10, FabricState(True, recovering=True)),
        (3, 0, 0b0100_10_10_10_10, FabricState(True, misconfigured=True)),
        # Other questions in higher bits, which newer drivers answer.
        (3, 0, 0b01_01_0001_10_10_10_10, FabricState(True)),
    ],
)
def test_a_gpu_reports_its_fabric_state(
    state: int,
    status: int,
    mask: int,
    answer: FabricState | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fabric(_handle: Any, info: Any) -> Any:
        found = info._obj
        found.state, found.status, found.healthMask = state, status, mask
        found.clusterUuid[0] = 1
        return info

    monkeypatch.setattr(pynvml, "nvmlDeviceGetGpuFabricInfoV", fabric)
    with fake_nvml(tmp_path, machine("dgx-h100").topology("n")).in_process(), Nvml() as nvml:
        assert {vitals.fabric for vitals in nvml.vitals()} == {answer}
        assert {gpu.fabric is not None for gpu in nvml.look().gpus} == {
            answer is not None and answer.registered
        }


@pytest.mark.parametrize("path", recorded.files("fixtures/topo", "*.txt"))
def test_a_posted_matrix_played_through_nvml_comes_back(path: str, tmp_path: Path) -> None:
    text = recorded.shared(path).read_text()
    if Path(path).stem in CUT:
        with pytest.raises(SourceError):
            read(text, NODE)
        return
    posted = read(text, NODE).topology
    with fake_nvml(tmp_path, posted).in_process():
        found, _ = discover(tmp_path / "nowhere")
    matrix = [(k.a, k.b, k.kind, k.pcie, k.nvlinks, k.via) for k in posted.links]
    assert [(k.a, k.b, k.kind, k.pcie, k.nvlinks, k.via) for k in found.links] == matrix
    assert [g.numa_node for g in found.gpus] == [g.numa_node for g in posted.gpus]


def test_a_gpu_in_mig_mode_shows_its_instances_and_no_links(tmp_path: Path) -> None:
    played = machine("hgx-a100-4").topology("n")
    fake = fake_nvml(tmp_path, played)
    fake.mig(1, [MigInstance("MIG-a", "3g.20gb", 19968 * MIB), None,
                 MigInstance("MIG-b", "1g.5gb", 4864 * MIB)])  # fmt: skip
    with fake.in_process():
        found, _ = discover(tmp_path)
    split = found.gpus[1]
    assert split.mig_mode == "enabled"
    assert [(m.uuid, m.profile, m.memory) for m in split.mig_instances] == [
        ("MIG-a", "3g.20gb", 19968 * MIB), ("MIG-b", "1g.5gb", 4864 * MIB),
    ]  # fmt: skip
    assert {(k.a, k.b) for k in found.links if k.nvlinks} == {(0, 2), (0, 3), (2, 3)}


@pytest.mark.parametrize(
    ("name", "profile", "mib"),
    [
        ("dgx-a100", "1g.5gb", 4864),
        ("dgx-a100", "3g.20gb", 19968),
        ("hgx-h200-8", "1g.18gb", 16384),
        ("hgx-h200-8", "3g.71gb", 71424),
        ("hgx-h200-8", "1c.3g.71gb", 71424),
        ("dgx-b200", "1g.23gb", 21632),
        ("a30-4-bridged", "2g.12gb", 11968),
    ],
)
def test_where_nvml_does_not_name_an_instance_its_size_does(
    name: str, profile: str, mib: int, tmp_path: Path
) -> None:
    """The profile that NVIDIA's plugin works out, after which it names the resource."""
    fake = fake_nvml(tmp_path, machine(name).topology("n"))
    fake.mig(1, [MigInstance("MIG-a", profile, mib * MIB)])
    fake.fail("nvmlDeviceGetName", UNKNOWN, 1)
    with fake.in_process():
        found, _ = discover(tmp_path)
    assert [part.profile for part in found.gpus[1].mig_instances] == [profile]


Fault = Callable[[NodeTopology], NodeTopology]
NO_PERMISSION, UNKNOWN = 4, 999


@pytest.mark.parametrize(
    ("function", "code", "fact", "lost"),
    [
        pytest.param("nvmlDeviceGetP2PStatus", NO_PERMISSION, "P2P status", "", id="P2P denied"),
        pytest.param("nvmlDeviceGetTopologyCommonAncestor", UNKNOWN, "PCIe class", "pcie",
                     id="ancestor"),
        pytest.param("nvmlDeviceGetNvLinkState", NO_PERMISSION, "NVLinks", "nvlinks",
                     id="NVLinks denied"),
        pytest.param("nvmlDeviceGetGpuFabricInfoV", UNKNOWN, "fabric", "", id="fabric"),
        pytest.param("nvmlDeviceGetMigMode", UNKNOWN, "MIG mode", "", id="MIG mode"),
        pytest.param("nvmlDeviceGetName", UNKNOWN, "product", "product", id="product"),
    ],
)  # fmt: skip
def test_a_call_that_fails_costs_its_fact_and_no_other(
    function: str, code: int, fact: str, lost: str, tmp_path: Path
) -> None:
    played = machine("dgx1-v100").topology("n")
    fake = fake_nvml(tmp_path, played)
    fake.fail(function, code)
    with fake.in_process():
        found, unseen = discover(tmp_path / "nowhere")
    assert fact in {u.fact for u in unseen}
    assert len([u for u in unseen if u.fact == fact and "GPU" in u.of]) >= 1
    assert [g.uuid for g in found.gpus] == [g.uuid for g in played.gpus]
    assert [g.memory for g in found.gpus] == [g.memory for g in played.gpus]
    if lost != "product":
        assert [g.product for g in found.gpus] == [g.product for g in played.gpus]
    for link, real in zip(found.links, played.links, strict=True):
        assert link.nvlinks == (0 if lost == "nvlinks" else real.nvlinks)
        assert link.pcie == (LinkKind.UNKNOWN if lost == "pcie" else real.pcie)


@pytest.mark.parametrize(
    "symbol",
    [
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMemoryAffinity",
    ],
)
def test_an_older_driver_that_lacks_a_symbol(symbol: str, tmp_path: Path) -> None:
    played = machine("dgx1-v100").topology("n")
    write_sysfs(tmp_path / "sys", played, machine("dgx1-v100"))
    with fake_nvml(tmp_path, played, without=[symbol]).in_process():
        found, _ = discover(tmp_path / "sys")
    # Each of these has another source, or is nothing a V100 has.
    assert found.gpus == bare(played).gpus
    assert found.links == bare(played).links


def test_a_gpu_that_is_passed_into_a_virtual_machine_misses_nothing(tmp_path: Path) -> None:
    """As a virtual machine with one H200 and its driver 580 showed itself on 2026-11-27: no links,
    no bridge above the GPU, and NVML does not support what it asks of links and of its NUMA node.
    """
    board = machine("hgx-h200-8").topology("n")
    gpu = replace(board.gpus[0], pci_bus_id="0000:00:06.0", numa_node=0)
    played = replace(board, gpus=(gpu,), links=(), nics=())
    write_gpus(tmp_path / "sys", played)
    fake = fake_nvml(tmp_path, played)
    for function in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNumaNodeId"):
        fake.fail(function, pynvml.NVML_ERROR_NOT_SUPPORTED)
    with fake.in_process():
        found, unseen = discover(tmp_path / "sys")
    assert found.gpus == (gpu,)
    assert (gpu.product, gpu.memory) == ("NVIDIA H200", 150754820096)
    assert (found.links, found.nics, unseen) == ((), (), ())


def test_a_lost_gpu_costs_itself(tmp_path: Path) -> None:
    played = machine("dgx1-v100").topology("n")
    fake = fake_nvml(tmp_path, played)
    with fake.in_process(), Nvml() as nvml:
        nvml.vitals()
        fake.lose(3)
        seen, vitals = nvml.look(), nvml.vitals()
    assert [g.gpu.index for g in seen.gpus] == [0, 1, 2, 4, 5, 6, 7]
    assert [v.uuid for v in vitals if v.lost] == [played.gpus[3].uuid]
    assert [u for u in seen.unseen if u.of == "GPU 3"] == [], "the record says it of its own"
    assert nvml.nameless == ()


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo"]
)
def test_a_gpu_that_fails_at_a_basic_call_is_lost(function: str, tmp_path: Path) -> None:
    """As after Xid 79, where drivers also say "Unknown Error"."""
    played = machine("dgx1-v100").topology("n")
    fake = fake_nvml(tmp_path, played)
    with fake.in_process(), Nvml() as nvml:
        nvml.vitals()
        fake.fail(function, UNKNOWN, 3)
        assert [v.uuid for v in nvml.vitals() if v.lost] == [played.gpus[3].uuid]
        fake.lift(function)
        assert [v.uuid for v in nvml.vitals() if v.lost] == []
        fake.fail(function, NO_PERMISSION, 3)
        assert [v.uuid for v in nvml.vitals() if v.lost] == []


def test_a_gpu_that_was_lost_before_is_counted_and_has_no_name(tmp_path: Path) -> None:
    fake = fake_nvml(tmp_path, machine("dgx1-v100").topology("n"))
    fake.lose(3)
    with fake.in_process(), Nvml() as nvml:
        assert len(nvml.vitals()) == 7
        assert list(nvml.nameless) == [3]
        fake.restore(3)
        assert len(nvml.vitals()) == 8
        assert list(nvml.nameless) == []


def test_a_driver_that_is_not_loaded_is_down(tmp_path: Path) -> None:
    fake = fake_nvml(tmp_path, machine("dgx1-v100").topology("n"))
    fake.fail("nvmlInitWithFlags", 9)
    fake.fail("nvmlInit_v2", 9)
    with fake.in_process(), pytest.raises(NvmlDownError, match="Driver Not Loaded"):
        Nvml()


def test_vitals_are_what_moves(tmp_path: Path) -> None:
    played = machine("dgx1-v100").topology("n")
    fake = fake_nvml(tmp_path, played)
    fake.utilisation(2, 40)
    fake.used(2, 300 * MIB)
    fake.processes(2, [(4711, 200 * MIB)])
    fake.remapped(5, pending=True, failure=False)
    fake.recovery_action(5, "gpu-reset")
    fake.drop_link(0, 1)
    with fake.in_process(), Nvml() as nvml:
        vitals = nvml.vitals()
    assert (vitals[2].utilisation, vitals[2].memory_used) == (0.4, 300 * MIB)
    assert vitals[2].processes == (GpuProcess(4711, Bytes(200 * MIB)),)
    assert (vitals[5].remap_pending, vitals[5].recovery) == (True, "reset")
    assert (vitals[4].remap_pending, vitals[4].recovery) == (False, "none")
    assert vitals[0].active_links == frozenset(range(6)) - {1}
    assert vitals[7].processes == ()
    assert vitals[7].energy is not None


def test_vitals_of_mig_instances_are_their_processes_and_their_memory(tmp_path: Path) -> None:
    fake = fake_nvml(tmp_path, machine("dgx-a100").topology("n"))
    parts = [MigInstance(f"MIG-{i}", "1g.5gb", 5 << 30) for i in range(2)]
    fake.mig(3, [parts[0], None, parts[1]])
    fake.processes(3, [(4711, 300 * MIB)], slot=2)
    fake.utilisation(2, 40)
    with fake.in_process(), Nvml() as nvml:
        vitals = nvml.vitals()
        assert vitals[3].utilisation is None
        assert vitals[3].instances == (
            InstanceVitals("MIG-0", 0, Bytes(0)),
            InstanceVitals("MIG-1", 1, Bytes(300 * MIB)),
        )
        assert (vitals[2].instances, vitals[2].memory_utilisation) == ((), 0.2)
        fake.fail("nvmlDeviceGetComputeRunningProcesses", NO_PERMISSION, 3)
        hidden = nvml.vitals()[3].instances
        assert [each.processes for each in hidden] == [None, None]


def test_an_xid_arrives(tmp_path: Path) -> None:
    played = machine("dgx1-v100").topology("n")
    fake = fake_nvml(tmp_path, played)
    with fake.in_process(), Nvml() as nvml:
        assert nvml.listen()
        assert nvml.wait(0.05) is None
        fake.xid(4, 79)
        xid = nvml.wait(PATIENCE)
    assert xid is not None
    assert (xid.uuid, xid.number) == (played.gpus[4].uuid, 79)


def test_an_xid_is_not_lost_while_the_gpus_are_asked_anew(tmp_path: Path) -> None:
    """A lost GPU ends every wait, so the agent subscribes again; an Xid may come just then."""
    played = machine("dgx1-v100").topology("n")
    fake = fake_nvml(tmp_path, played)
    with fake.in_process(), Nvml() as nvml:
        assert nvml.listen()
        fake.lose(3)
        with pytest.raises(EventsFailedError):
            nvml.wait(PATIENCE)
        fake.xid(4, 48)
        assert nvml.listen()
        xid = nvml.wait(0.05)
        assert xid is not None
        assert (xid.uuid, xid.number) == (played.gpus[4].uuid, 48)
        assert nvml.wait(0.05) is None
        fake.xid(5, 48)
        assert nvml.wait(PATIENCE) is not None


def test_gpus_that_cannot_be_read_again_are_watched_as_before(tmp_path: Path) -> None:
    fake = fake_nvml(tmp_path, machine("dgx1-v100").topology("n"))
    with fake.in_process(), Nvml() as nvml:
        assert nvml.listen()
        fake.fail("nvmlDeviceRegisterEvents", UNKNOWN)
        fake.xid(4, 48)
        assert not nvml.listen()
        fake.lift("nvmlDeviceRegisterEvents")
        assert nvml.listen()
        assert nvml.wait(0.05) is not None
