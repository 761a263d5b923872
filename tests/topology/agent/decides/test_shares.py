"""What the plugin did with pods tells whether it gives a container several shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tests.topology.agent.entries import entry, pod, pods
from topology.agent.decides.allocation import Plugin
from topology.agent.decides.holders import Holders
from topology.agent.decides.holdings import NodePod
from topology.agent.decides.observed import Unseen
from topology.agent.decides.shares import CONFIGURATION_LABEL, SharesBook
from topology.agent.decides.surroundings import Surroundings
from topology.core.devices import PodUid

MESSAGE = (
    "Allocate failed due to rpc error: code = Unknown desc = invalid allocation request for "
    '"nvidia.com/gpu": invalid request: maximum request size for shared resources is 1; found 2, '
    "which is unexpected"
)
LOST = "Allocate failed due to device plugin GetPreferredAllocation rpc failed: GPU is lost"

LABELS = {"kubernetes.io/hostname": "n"}
"""Every Node has some."""


@dataclass
class Node:
    """A node as the agent sees it; times are texts that ascend."""

    plugin: str = "10:00"
    labels: Mapping[str, str] = field(default_factory=lambda: dict(LABELS))
    pods: tuple[NodePod, ...] = ()
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()
    book: SharesBook = field(default_factory=SharesBook)

    def look(self, now: str = "13:00") -> bool | None:
        """What is known after one more look."""
        plugin = Plugin("v0.19.3", {}, self.plugin)
        around = Surroundings(pods(*self.pods), plugin, self.labels, unseen=self.unseen)
        held = {PodUid(uid): entry(uid, *devices) for uid, devices in self.held.items()}
        self.book.look(around, Holders(held), now)
        return self.book.refuses_several


def started(at: str, refusal: str = "") -> NodePod:
    return NodePod(PodUid(at), "ns", at, {("main", "nvidia.com/gpu"): 2}, True, False,
                   bool(refusal), at, refusal)  # fmt: skip


TWO = ("GPU-0::0", "GPU-1::0")
ONE_POD = [
    # name, the pod, what it holds, whether the plugin refuses several then
    ("nothing was ever seen", (), {}, None),
    ("two shares were given", (started("11:00"),), {"11:00": TWO}, False),
    ("two shares of one GPU were given", (started("11:00"),), {"11:00": ("G::0", "G::1")}, False),
    ("one share says nothing", (started("11:00"),), {"11:00": ("GPU-0::0",)}, None),
    ("two whole GPUs say nothing", (started("11:00"),), {"11:00": ("GPU-0", "GPU-1")}, None),
    ("two shares were refused", (started("11:00", MESSAGE),), {}, True),
    ("another refusal says nothing", (started("11:00", LOST),), {}, None),
    ("given before this plugin started", (started("09:59"),), {"09:59": TWO}, None),
    ("given while it started", (started("10:00"),), {"10:00": TWO}, None),
    ("refused before this plugin started", (started("09:59", MESSAGE),), {}, None),
    ("a pod that nobody knows", (), {"11:00": TWO}, None),
    (
        "of both the later counts",
        (started("11:00"), started("12:00", MESSAGE)),
        {"11:00": TWO},
        True,
    ),
    (
        "whichever it is",
        (started("12:00"), started("11:00", MESSAGE)),
        {"12:00": TWO},
        False,
    ),
]


@pytest.mark.parametrize(
    ("seen", "held", "refuses"), [pytest.param(*row[1:], id=row[0]) for row in ONE_POD]
)
def test_what_is_learnt(
    seen: tuple[NodePod, ...], held: dict[str, tuple[str, ...]], refuses: bool | None
) -> None:
    assert Node(pods=seen, held=held).look() is refuses


def test_it_is_remembered_when_the_pod_is_gone() -> None:
    node = Node(pods=(started("11:00"),), held={"11:00": TWO})
    assert node.look() is False
    node.pods, node.held = (), {}
    assert node.look() is False
    node.pods = (started("12:00", MESSAGE),)
    assert node.look() is True


def test_it_is_forgotten_when_the_plugin_starts_anew() -> None:
    node = Node(pods=(started("11:00"),), held={"11:00": TWO})
    assert node.look() is False
    node.plugin = "12:00"
    assert node.look() is None
    node.plugin = ""
    assert node.look() is None
    node.plugin = "10:00"
    assert node.look() is False


def test_it_is_forgotten_when_the_configuration_is_another() -> None:
    """Nobody tells when the plugin has read it: what came before it was seen does not count."""
    node = Node(pods=(started("11:00"),), held={"11:00": TWO})
    assert node.look() is False
    node.labels = {**LABELS, CONFIGURATION_LABEL: "other"}
    assert node.look("12:00") is None
    node.pods = (*node.pods, started("12:01", MESSAGE))
    assert node.look("12:02") is True


def restarted(node: Node) -> Node:
    """Another agent on the node; no pod is left that would tell it what the plugin did."""
    return Node(node.plugin, dict(node.labels), book=SharesBook(node.book.learnt))


def test_an_agent_that_starts_anew_knows_what_the_former_one_has_learnt() -> None:
    node = Node(pods=(started("11:00", MESSAGE),))
    assert node.look() is True
    node = restarted(node)
    assert node.look() is True
    node.pods, node.held = (started("12:00"),), {"12:00": TWO}
    assert node.look() is False, "and learns on"
    assert restarted(node).look() is False


def test_what_the_former_agent_has_learnt_holds_for_the_same_plugin_alone() -> None:
    node = Node(pods=(started("11:00", MESSAGE),))
    assert node.look() is True
    for plugin, labels in (("12:00", LABELS), ("10:00", LABELS | {CONFIGURATION_LABEL: "other"})):
        other = restarted(node)
        other.plugin, other.labels = plugin, labels
        assert other.look() is None
    other = restarted(node)
    other.plugin = ""
    assert other.look() is None, "the plugin's pod is not known yet"
    other.plugin = "10:00"
    assert other.look() is True


@pytest.mark.parametrize("seen_before", [False, True], ids=["meanwhile", "by the former agent"])
def test_an_agent_that_starts_anew_counts_no_pod_of_another_configuration(
    *, seen_before: bool
) -> None:
    """A pod got two shares; since then the label has changed, and the plugin refuses them."""
    node = Node(pods=(started("11:00"),), held={"11:00": TWO})
    assert node.look() is False
    labels = LABELS | {CONFIGURATION_LABEL: "other"}
    if seen_before:
        node.labels = labels
        assert node.look("12:00") is None
    other = restarted(node)
    other.labels, other.pods, other.held = labels, node.pods, node.held
    assert other.look("13:00") is None
    other.pods = (*other.pods, started("13:01", MESSAGE))
    assert other.look("13:02") is True
    assert restarted(other).look("14:00") is True


def test_an_agent_that_knows_nothing_counts_no_pod_of_before_where_a_label_chooses() -> None:
    """Nobody can tell it since when the Node has the label."""
    labels = LABELS | {CONFIGURATION_LABEL: "other"}
    node = Node(pods=(started("11:00"),), held={"11:00": TWO}, labels=labels)
    assert node.look("13:00") is None
    node.pods = (*node.pods, started("13:01", MESSAGE))
    assert node.look("13:02") is True


def test_nothing_is_said_before_the_nodes_labels_are_known() -> None:
    labels = LABELS | {CONFIGURATION_LABEL: "shared"}
    node = Node(labels=labels)
    assert node.look("10:30") is None
    node.pods = (started("11:00", MESSAGE),)
    assert node.look() is True
    node = restarted(node)
    node.labels = {}
    assert node.look() is None
    node.labels = labels
    assert node.look() is True, "they do not come as another configuration"
    node.unseen = (Unseen("Node", "403 Forbidden"),)
    node.labels, node.book = {}, SharesBook()
    node.pods = (started("11:00", MESSAGE),)
    assert node.look() is True, "where nobody may read the Node, none is known"


def test_a_deed_that_says_the_same_again_makes_no_other_record() -> None:
    node = Node(pods=(started("11:00", MESSAGE),))
    node.look()
    before = node.book.answer
    node.pods = (started("12:00", MESSAGE),)
    assert node.look() is True
    assert node.book.answer == before


def test_without_a_plugin_nothing_is_learnt() -> None:
    book = SharesBook()
    known = {PodUid("11:00"): entry("11:00", *TWO)}
    book.look(Surroundings(pods(started("11:00")), None), Holders(known), "13:00")
    assert book.refuses_several is None
    assert pod("1", "a").started == ""
