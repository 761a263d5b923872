"""Who holds what at one moment: what is whole, what is still to come, who has vanished."""

from __future__ import annotations

from tests.topology.agent.entries import GPU, entry, pod, pods
from topology.agent.decides.holdings import (
    Entry,
    Held,
    NodePod,
    allocations,
    awaited,
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


def test_news_is_due_of_who_comes_and_who_goes() -> None:
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
    assert awaited(joined, known) == {"ending", "gone", "half", "bound"}


def test_another_plugins_devices_are_not_waited_for() -> None:
    nic = NodePod(PodUid("1"), "ns", "a", {("main", "nvidia.com/hostdev"): 1})
    assert awaited({}, pods(nic), {GPU}) == frozenset()
    assert awaited({}, pods(nic), None) == {"1"}


def test_who_vanishes_alive() -> None:
    before = {PodUid(n): entry(n, "G1") for n in ("alive", "ended", "deleting", "deleted")}
    known = pods(
        pod("alive", "alive"), pod("ended", "ended", ended=True),
        pod("deleting", "deleting", deleting=True),
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
