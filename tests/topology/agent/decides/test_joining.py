"""Whose entries are these? The kubelet's list joined to the API server's pods."""

from __future__ import annotations

import pytest

from tests.topology.agent.entries import entry, pod, pods
from topology.agent.decides.holdings import Entry, NodePod
from topology.agent.decides.joining import Joined, join
from topology.core.devices import PodUid


def shown(joined: Joined) -> tuple[dict[str, tuple[str, ...]], list[Entry]]:
    """Device ids by UID, and the entries of which nobody can tell whose they are."""
    found: dict[str, tuple[str, ...]] = {
        uid: tuple(i for h in e.held for i in h.device_ids) for uid, e in joined.by_uid.items()
    }
    return found, list(joined.unidentified)


def test_a_pod_is_known_by_its_name() -> None:
    joined = join([entry("a", "G1"), entry("b")], pods(pod("1", "a"), pod("2", "b")), {})
    assert shown(joined) == ({"1": ("G1",), "2": ()}, [])


def test_a_pod_that_nobody_knows_is_unidentified_if_it_holds_something() -> None:
    joined = join([entry("a", "G1"), entry("b")], {}, {})
    assert shown(joined) == ({}, [entry("a", "G1")])


BEFORE = {PodUid("old"): entry("a", "G1")}


@pytest.mark.parametrize(
    ("entries", "known", "expected"),
    [
        pytest.param(
            [entry("a", "G1")], [], {"old": ("G1",)}, id="gone from the API server, held still"
        ),
        pytest.param(
            [entry("a", "G1")],
            [pod("new", "a")],
            {"old": ("G1",)},
            id="its successor is not admitted yet",
        ),
        pytest.param(
            [entry("a", "G1")],
            [pod("new", "a", acknowledged=True)],
            {"new": ("G1",)},
            id="its successor is admitted and got the same",
        ),
        pytest.param(
            [entry("a", "G2")], [pod("new", "a")], {"new": ("G2",)}, id="its successor got another"
        ),
        pytest.param(
            [entry("a", "G2"), entry("a", "G1")],
            [pod("new", "a", acknowledged=True)],
            {"old": ("G1",), "new": ("G2",)},
            id="both at once",
        ),
        pytest.param([], [pod("new", "a")], {}, id="neither"),
    ],
)
def test_one_name_two_pods(
    entries: list[Entry], known: list[NodePod], expected: dict[str, tuple[str, ...]]
) -> None:
    joined = join(entries, pods(*known), BEFORE)
    assert shown(joined) == (expected, [])


def test_the_first_list_may_be_of_somebody_who_has_left_already() -> None:
    """A pod deleted by force before the agent started, and its successor of the same name."""
    entries = [entry("a", "G1")]
    joined = join(entries, pods(pod("new", "a")), None)
    assert shown(joined) == ({}, entries)
    joined = join(entries, pods(pod("new", "a", acknowledged=True)), None)
    assert shown(joined) == ({"new": ("G1",)}, [])


def test_three_pods_of_one_name() -> None:
    before = {PodUid("1"): entry("a", "G1"), PodUid("2"): entry("a", "G2")}
    entries = [entry("a", "G1"), entry("a", "G2"), entry("a", "G3")]
    joined = join(entries, pods(pod("3", "a", acknowledged=True)), before)
    assert shown(joined) == ({"1": ("G1",), "2": ("G2",), "3": ("G3",)}, [])
    joined = join(entries[:2], pods(pod("3", "a")), before)
    assert shown(joined) == ({"1": ("G1",), "2": ("G2",)}, [])
