"""A node's topology in networkx, and there and back through GraphML."""

import sys
from io import BytesIO

import networkx as nx
import pytest

from scheduler_extender.cli import main
from tests.commands import ROOT, asked
from topology import networkx_graph
from topology.codec import RecordError, encode
from topology.core.links import LinkKind
from topology.machines import MACHINES, machine

MIXED = ROOT / "examples/clusters/mixed.yaml"


@pytest.mark.parametrize("name", MACHINES)
def test_it_has_every_device_and_link(name: str) -> None:
    topology = machine(name).topology("n")
    graph = networkx_graph(encode(topology))
    of_kind = nx.get_node_attributes(graph, "kind")
    assert list(of_kind.values()).count("gpu") == len(topology.gpus)
    assert list(of_kind.values()).count("nic") == len(topology.nics)
    for link in topology.links:
        edge = graph.edges[f"gpu-{link.a}", f"gpu-{link.b}"]
        assert edge == {
            "link": link.kind.label,
            "nvlinks": link.nvlinks,
            "bandwidth": link.bandwidth,
        }
    for gpu in topology.gpus:
        near = [other for other in graph[f"gpu-{gpu.index}"] if of_kind[other] == "numa"]
        assert near == ([] if gpu.numa_node is None else [f"numa-{gpu.numa_node}"])
    for nic in topology.nics:
        for index, kind in nic.distances:
            assert graph.edges[f"gpu-{index}", f"nic-{nic.name}"] == {"link": kind.label}


def test_it_comes_back_from_graphml() -> None:
    done = asked(main, "node", "v100-00", "-o", "graphml", "--cluster", MIXED)
    assert done.returncode == 0, done.stderr
    read = nx.read_graphml(BytesIO(done.stdout.encode()))
    wrote = networkx_graph(encode(machine("dgx1-v100").topology("v100-00")))
    assert read.graph["name"] == "v100-00"
    without_uuids = [
        {name: {**about, "uuid": ""} for name, about in graph.nodes.items()}
        for graph in (read, wrote)
    ]
    assert without_uuids[0] == without_uuids[1]
    assert nx.utils.edges_equal(read.edges(data=True), wrote.edges(data=True))
    rings = {
        edge for edge, link in nx.get_edge_attributes(read, "link").items() if link == "NVLINK"
    }
    assert nx.is_connected(read.edge_subgraph(rings))
    assert LinkKind.PIX.label in nx.get_edge_attributes(read, "link").values()


def test_a_bad_record_is_refused() -> None:
    with pytest.raises(RecordError):
        networkx_graph({"spec": {"devices": 1}})


def test_a_missing_networkx_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    done = asked(main, "node", "v100-00", "-o", "graphml", "--cluster", MIXED)
    assert done.returncode == 2
    assert done.stderr == "error: -o graphml needs a package: pip install networkx\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("v100-99", "--cluster", MIXED), "error: there is no node v100-99"),
        (("v100-00", "--forward"), "error: -o graphml: not with --watch or --forward"),
        (("v100-00", "--watch", "--cluster", MIXED), "error: -o graphml: not with --watch"),
    ],
)
def test_what_has_no_graph_is_refused(words: tuple[str, ...], error: str) -> None:
    done = asked(main, "node", "-o", "graphml", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(error)
