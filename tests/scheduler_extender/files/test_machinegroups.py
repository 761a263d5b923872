"""MachineGroups whose kubelets have policies: the same answers as from a written record."""

from pathlib import Path

import pytest

from scheduler_extender.files.clusterfile import load, parse
from topology.codec import decode, encode
from topology.machines import machine

GROUP = "{{kind: MachineGroup, machine: {machine}, count: 2, namePrefix: n-, {keys}}}"


@pytest.mark.parametrize(
    "policies",
    [
        pytest.param({"topologyManagerPolicy": "single-numa-node"}, id="one"),
        pytest.param(
            {
                "policy": "any",
                "topologyManagerPolicy": "restricted",
                "topologyManagerScope": "pod",
                "cpuManagerPolicy": "static",
                "memoryManagerPolicy": "Static",
                "preferClosestNumaNodes": True,
                "fullPcpusOnly": True,
                "alignBySocket": True,
            },
            id="all",
        ),
        pytest.param({}, id="none"),
    ],
)
@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100", "p3.16xlarge", "t4-1"])
def test_a_group_is_as_the_records_of_its_nodes(name: str, policies: dict[str, object]) -> None:
    kind = machine(name)
    written = encode(kind.topology("n-01", allocator=kind.kubelet(cpus=3)))
    spec = written["spec"]
    assert isinstance(spec, dict)
    spec["allocator"] |= policies
    keys = f"cpu: 3, allocator: {policies}"
    _, second = parse(GROUP.format(machine=name, keys=keys)).records
    topology = decode(written, strict=True).topology
    assert second.topology.gpus == topology.gpus
    assert second.topology.allocator.numa_distances == topology.allocator.numa_distances
    assert encode(second.topology)["spec"]["allocator"] == spec["allocator"]  # type: ignore[index]
    numa, known = second.topology.allocator.numa, topology.allocator.numa
    assert numa is not None
    assert known is not None
    assert (numa.allocatable, numa.socket_aligned) == (known.allocatable, known.socket_aligned)
    assert second.report is not None
    assert second.report.holdings == (), "no pod has CPUs of an empty node"


def test_gpus_keep_their_numa_nodes_where_a_record_can_name_no_cpus() -> None:
    keys = "allocator: {topologyManagerPolicy: restricted}"
    first, _ = parse(GROUP.format(machine="ac922-6", keys=keys)).records
    assert first.topology.allocator.sees_topology
    assert {gpu.topology_nodes for gpu in first.topology.gpus} == {(0,), (8,)}


def test_a_path_may_name_machines_unless_a_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("t4-1=2,p3.16xlarge=1", "t4-1=2"):
        topologies = [record.topology for record in load(Path(path)).records]
        names = [node.name for node in topologies]
        assert names == ["t4-1-00", "t4-1-01", "p3.16xlarge-00"][: len(names)]
        assert [len(node.gpus) for node in topologies] == [1, 1, 8][: len(names)]
        assert topologies[0] == machine("t4-1").topology("t4-1-00")
    Path("t4-1=2").write_text(GROUP.format(machine="t4-1", keys=""))
    assert [record.topology.name for record in load(Path("t4-1=2")).records] == ["n-00", "n-01"]
