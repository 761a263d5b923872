"""Which pod has which devices, and which pod each entry of the kubelet's list belongs to."""

from functools import partial

import pytest

from tests.topology.agent.entries import GPU, entry, pod, pods
from topology.agent.model.podentries import (
    Entry,
    Held,
    Joined,
    NodePod,
    allocations,
    awaited,
    join,
    vanished,
    whole,
)
from topology.core.devices import DeviceId, PodUid


def test_a_pod_is_whole_with_every_containers_devices() -> None:
    two = NodePod(PodUid("1"), "ns", "a", {("main", GPU): 2, ("side", GPU): 1})
    half = entry("a", "G1", "G2")
    both = Entry("ns", "a", (*half.held, Held("side", GPU, (DeviceId("G3"),))))
    assert not whole(two, None)
    assert not whole(two, half)
    assert whole(two, both)
    # One resource may be split over entries.
    split = tuple(Held("main", GPU, (DeviceId(i),)) for i in ("G1", "G2"))
    assert whole(pod("1", "a", 2), Entry("ns", "a", split))


def test_a_change_is_due_when_pods_come_and_go() -> None:
    joined = {
        PodUid("whole"): entry("whole", "G1"),
        PodUid("ending"): entry("ending", "G2"),
        PodUid("gone"): entry("gone", "G3"),
        PodUid("half"): entry("half", "G4"),
    }
    known = pods(
        pod("whole", "whole"),
        pod("ending", "ending", ended=True),
        pod("half", "half", 2),
        pod("bound", "bound"),
        pod("refused", "refused", ended=True),
        NodePod(PodUid("plain"), "ns", "plain"),
    )
    assert awaited(joined, known, whole) == {"ending", "gone", "half", "bound"}


def test_another_plugins_devices_are_not_waited_for() -> None:
    nic = NodePod(PodUid("1"), "ns", "a", {("main", "nvidia.com/hostdev"): 1})
    assert awaited({}, pods(nic), partial(whole, served={GPU})) == frozenset()
    assert awaited({}, pods(nic), whole) == {"1"}


def test_pods_that_vanish_alive() -> None:
    before = {PodUid(n): entry(n, "G1") for n in ("alive", "ended", "deleting", "deleted")}
    known = pods(
        pod("alive", "alive"), pod("ended", "ended", ended=True),
        pod("deleting", "deleting", terminating=True),
    )  # fmt: skip
    assert vanished({}, before, known) == {"alive"}
    assert vanished({PodUid("alive"): entry("alive")}, before, known) == {"alive"}
    assert vanished({PodUid("alive"): entry("alive", "G1")}, before, known) == frozenset()


def test_allocations_are_in_one_order() -> None:
    joined = {PodUid("2"): entry("b", "G2"), PodUid("1"): entry("a", "G1")}
    found = allocations(joined, [entry("c", "G3")])
    assert [(a.pod_uid, a.pod, a.device_ids) for a in found] == [
        ("1", "a", ("G1",)), ("2", "b", ("G2",)), ("", "c", ("G3",)),
    ]  # fmt: skip
    assert found == allocations(dict(reversed(joined.items())), [entry("c", "G3")])


def shown(joined: Joined) -> tuple[dict[str, tuple[str, ...]], list[Entry]]:
    """Device ids by UID, and the entries whose pod is unknown."""
    found: dict[str, tuple[str, ...]] = {
        uid: tuple(i for h in e.held for i in h.device_ids) for uid, e in joined.by_uid.items()
    }
    return found, list(joined.unidentified)


def test_a_pod_is_known_by_its_name() -> None:
    joined = join([entry("a", "G1"), entry("b")], pods(pod("1", "a"), pod("2", "b")), {})
    assert shown(joined) == ({"1": ("G1",), "2": ()}, [])


def test_an_unknown_pod_is_unidentified_if_it_has_a_device() -> None:
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
    assert shown(join(entries, pods(*known), BEFORE)) == (expected, [])


def test_three_pods_of_one_name() -> None:
    before = {PodUid("1"): entry("a", "G1"), PodUid("2"): entry("a", "G2")}
    entries = [entry("a", "G1"), entry("a", "G2"), entry("a", "G3")]
    joined = join(entries, pods(pod("3", "a", acknowledged=True)), before)
    assert shown(joined) == ({"1": ("G1",), "2": ("G2",), "3": ("G3",)}, [])
    joined = join(entries[:2], pods(pod("3", "a")), before)
    assert shown(joined) == ({"1": ("G1",), "2": ("G2",)}, [])
