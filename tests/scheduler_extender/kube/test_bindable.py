"""What a replica knows of pods that could be bound, and when its own mark counts as shown."""

from typing import Any

import pytest

from scheduler_extender.annotations import TERM
from scheduler_extender.kube.bindable import Bindable, OwnPod
from scheduler_extender.wire import ObjectMeta, Pod

OURS = "gpu-topology-system"


def pod(name: str, version: int, namespace: str = "default", mark: str | None = None) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=name,
            annotations={TERM: mark} if mark is not None else None,
            resource_version=str(version),
        )
    )


def _take_in(found: Bindable, *pods: Any) -> None:
    for each in pods:
        found.take(each, managed=False)


def test_a_mark_in_a_list_is_not_shown_before_the_pods_behind_it() -> None:
    """A new leader changes the pods that are known when its mark is shown: all of them have to be.

    Our own pod stands before others in a list, as one whose namespace begins with g may.
    """
    found = Bindable(OwnPod(OURS, "me"), "me")
    with found.whole():
        found.take(pod("me", 7, OURS, "3 me"), managed=False)
        assert not found.shown("3 me", 0)
        found.take(pod("train", 5), managed=True)
    assert found.shown("3 me", 0)
    assert set(found.pods()) == {"train"}


def test_a_list_that_could_not_be_taken_in_shows_nothing() -> None:
    found = Bindable(OwnPod(OURS, "me"), "me")
    own = pod("me", 7, OURS, "3 me")
    with pytest.raises(AttributeError), found.whole():
        _take_in(found, own, None)
    assert not found.shown("3 me", 0)
    assert not found.pods()


def test_the_term_of_another_counts_in_the_middle_of_a_list() -> None:
    """It deposes us; the sooner the better."""
    found = Bindable(OwnPod(OURS, "me"), "me")
    with found.whole():
        found.take(pod("other", 7, OURS, "3 other"), managed=False)
        assert found.others_term == 3


def test_a_mark_of_another_process_on_our_own_pod_is_another_s() -> None:
    """A container that was restarted, or two that were given one pod's name."""
    found = Bindable(OwnPod(OURS, "me"), "me_2")
    found.take(pod("me", 7, OURS, "3 me_2"), managed=False)
    assert found.others_term == 0
    found.take(pod("me", 8, OURS, "4 me_1 fenced"), managed=False)
    assert found.others_term == 4


@pytest.mark.parametrize("forged", [2**31 - 1, 10**12, "9" * 400, "-1", "1e9", ""])
def test_a_term_that_no_lease_can_count_is_no_term(forged: object) -> None:
    """A Lease counts in 32 bits: no replica could begin a later term."""
    found = Bindable(OwnPod(OURS, "me"), "me")
    found.take(pod("other", 7, OURS, f"{forged} somebody"), managed=False)
    assert found.term == found.others_term == 0
