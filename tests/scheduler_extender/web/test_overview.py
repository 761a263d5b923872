"""Nodes that share a drawing are alike in all that it shows, and each of them can be reached."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

import pytest

from scheduler_extender.explain.gpustates import NodeState, Use, node_state
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.web.drawing import counted, tile
from scheduler_extender.web.overview import Filters, Likeness, Tile, overview, picture_of, who
from scheduler_extender.web.pages import LISTED, Pages
from tests.nodes import GIB, pcie
from tests.scheduler_extender.web.cluster import Building, large, small
from topology.core.devices import Bytes, DeviceId, GpuResource, NodeName
from topology.core.report import Allocation, Report
from topology.core.requests import Constraints

NODES = 600
ALL, DGX = Filters(), NodeName("dgx-01")
LABEL = re.compile(r'aria-label="[^"]*"')


@pytest.fixture(scope="module")
def crowd() -> Building:
    return large(NODES)


@pytest.fixture(scope="module")
def states(crowd: Building) -> dict[NodeName, NodeState]:
    return class_ids_of(crowd)


def class_ids_of(made: Building) -> dict[NodeName, NodeState]:
    return {info.name: node_state(info) for info in made.cluster.snapshot().nodes}


def tiles(states: dict[NodeName, NodeState], filters: Filters = ALL) -> Iterator[tuple[str, Tile]]:
    for section in overview(list(states.values()), filters).sections:
        for each in section.tiles:
            yield section.kind, each


def drawn(text: str) -> Counter[str]:
    """The GPUs of a drawing by the class of their state."""
    return Counter(re.findall(r'class="dot ([a-z-]+)"', text))


def test_nodes_that_share_a_drawing_are_alike_in_what_it_shows(
    states: dict[NodeName, NodeState],
) -> None:
    seen = Counter[Likeness]()
    for _, each in tiles(states):
        seen[each.likeness] += each.many > 1
        for name in each.nodes:
            node = states[name]
            if each.exact:
                assert LABEL.sub("", tile(node)) == LABEL.sub("", tile(each.sample))
                continue
            has = Counter({use.value: node.uses[use] for use in Use})
            answer = drawn(picture_of(each))
            used = answer.pop("in-use-mixed", 0)
            assert all(has[state] == n for state, n in answer.items())
            assert sum((has - answer).values()) == used
    assert min(seen[each] for each in Likeness) > 0, "each likeness occurs"


@pytest.mark.parametrize("name", ["", "pod"])
def test_a_group_can_be_opened(
    crowd: Building, states: dict[NodeName, NodeState], name: str
) -> None:
    pages, opened = Pages(crowd.cluster), 0
    filters = Filters(name=name)
    page = pages.map(filters)
    for kind, each in tiles(states, filters):
        if each.many == 1:
            continue
        group = replace(filters, kind=kind, like=each.nodes[0], by=each.likeness.value)
        assert f'href="/map/nodes{group.query()}"'.replace("&", "&amp;") in page
        assert sorted(of_list(pages, group)) == sorted(each.nodes)
        opened += 1
    assert opened > 12


def of_list(pages: Pages, filters: Filters) -> list[str]:
    """The nodes that all pages of the list name."""
    found: list[str] = []
    for at in range(1, NODES // LISTED + 2):
        text = pages.nodes(filters, at)
        found += re.findall(r'<th scope="row"><a href="/map/nodes/[^"]*">([^<]*)</a>', text)
        if f"page={at + 1}" not in text:
            break
    return [unescape(name) for name in found]


def test_the_list_has_every_node_once(crowd: Building, states: dict[NodeName, NodeState]) -> None:
    assert of_list(Pages(crowd.cluster), Filters()) == sorted(states)


def test_a_page_beyond_the_last_one_is_the_last_one(crowd: Building) -> None:
    pages = Pages(crowd.cluster)
    beyond, last = (
        re.sub("<time.*?</time>", "", pages.nodes(Filters(), page))  # when it was asked for
        for page in (99_999_999, NODES // LISTED)
    )
    assert beyond == last


def test_nodes_like_one_that_is_gone_are_none(crowd: Building) -> None:
    text = Pages(crowd.cluster).nodes(Filters(like="nobody", by="uses"))
    assert "No node matches the filter" in text


def test_a_pod_that_is_looked_for_is_marked_and_no_other_one() -> None:
    made = small()
    text = Pages(made.cluster).map(Filters(name="notebook"))
    assert len(re.findall(r'<circle [^>]*class="found"/>', text)) == 1
    assert "a pod whose name matches the filter" in text
    assert 'class="found"' not in Pages(made.cluster).map(Filters())
    assert Filters(name="notebook").found(class_ids_of(made)[DGX]) == {5}


def test_the_map_counts_the_pods_that_wait_and_those_of_the_name() -> None:
    pages = Pages(small().cluster)
    assert "<b>4</b> pods wait" in pages.map(Filters())
    assert "Pods that match" not in pages.map(Filters())
    text = pages.map(Filters(name="wants-1"))
    assert '<a href="/map/waiting?name=wants-1">2 waiting</a>' in text
    assert "Similar names" not in text, "the pods are found"


def test_a_band_joins_the_gpus_of_one_pod() -> None:
    """Behind an NVSwitch nothing else says which GPUs belong together."""
    states = class_ids_of(small())
    assert states[DGX].together == ((0, 1, 2, 3),)
    assert len(re.findall(r'class="band in-use-as-asked"', tile(states[DGX]))) == 1
    assert 'class="band' not in tile(states[NodeName("bridge-01")]), "its pod has one GPU"
    assert who(states[DGX]) == [("0-3", "team-a/train-llm"), ("5", "team-b/notebook-2")]


def test_pods_that_lie_otherwise_do_not_look_alike() -> None:
    made = Building()
    for number, parts in enumerate([((0, 1), (2, 3)), ((0, 2), (1, 3))]):
        for copy in range(60):
            node = made.node("l40s-4", f"n-{number}-{copy:02d}")
            held: list[tuple[PodRecord, tuple[int, ...]]] = [
                (made.pod(f"{node.name}-{at[0]}", 2, node), at) for at in parts
            ]
            made.report(node, held)
    states = class_ids_of(made)
    assert [each.many for _, each in tiles(states)] == [60, 60]


def test_memory_in_use_of_shared_gpus_is_reported() -> None:
    made = Building()
    shares = GpuResource("nvidia.com/gpu", "time-slicing", 4)
    node = replace(pcie(2, "shared"), resources=(shares,))
    says = made.pod("says", 1, node, Constraints(gpu_memory=Bytes(30 * GIB)))
    device = DeviceId(f"{node.gpus[1].uuid}::0")
    held = Allocation(says.uid, says.namespace, says.name, "main", shares.name, (device,))
    made.cluster.put_record(node, Report("boot", 1, allocations=(held,)))
    (found,) = class_ids_of(made).values()
    assert [gpu.memory_used for gpu in found.gpus] == [0, 30 * GIB]
    assert ("1", "30Gi of 44Gi in use") in who(found)
    pages = Pages(made.cluster)
    assert "30Gi of 89Gi</b> are in use" in pages.map(Filters())
    page = pages.node("shared") or ""
    assert "<td>44Gi</td><td>30Gi</td>" in page
    assert "3 of 4 GPU shares free, 30Gi in use: team-a/says" in page
    assert "i in use" not in (Pages(small().cluster).node("dgx-01") or "")


def test_a_drawing_of_counts_is_as_high_as_it_needs_to_be() -> None:
    assert 'viewBox="0 0 100 50"' in counted({"free": 3, "in-use-as-asked": 5}, "eight")
    assert 'viewBox="0 0 100 25"' in counted({"free": 16}, "sixteen")
