"""Room that owners share."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path

import pytest

from scheduler_extender.kube.dra import CLAIMS_PATH, GROUP
from scheduler_extender.kube.room import Bounds, Room
from scheduler_extender.kube.source import KubeSource
from scheduler_extender.state.cluster.cache import Cache
from tests.dranodes import asking, exactly
from tests.scheduler_extender.conftest import Kube
from tests.waiting import eventually
from topology.kubeapi.apiserver import ApiServer

BOUNDS = Bounds(all=100, owner=60, one=30)


def test_an_owner_and_an_object_have_bounds() -> None:
    room = Room(BOUNDS)
    assert room.put("a", 1, 31) == [1]
    assert room.put("a", 2, 30) == room.put("a", 3, 30) == []
    assert room.put("a", 4, 1) == [4]
    assert (room.taken, room.outside) == (60, 2)
    room.drop("a", 2)
    assert room.is_there()
    room.drop("a", 4)
    assert not room.is_there(), "there is none for an object that is too large by itself"
    assert (room.taken, room.outside) == (30, 1)


def test_who_has_most_gives_way_to_who_has_less() -> None:
    room = Room(BOUNDS)
    for key in range(6):
        assert room.put("a", key, 10) == []
    for key in range(6, 10):
        assert room.put("b", key, 10) == []
    assert room.put("b", 10, 10) == [5], "the last of the owner that has most"
    assert room.put("b", 11, 10) == [11], "no more than an equal share"
    assert not room.is_there()
    assert room.put("c", 12, 10) in ([4], [10])
    room.drop("a", 0)
    assert room.is_there()


def test_a_list_that_leaves_something_outside_is_not_taken_again_and_again() -> None:
    """A later object may make an earlier one give way that is larger than it needs."""
    room = Room(BOUNDS)
    for key, size in enumerate((30, 30)):
        assert room.put("a", key, size) == []
        assert room.put("b", key + 2, size - 10) == []
    assert room.put("a", 4, 10) == [4]
    assert room.put("c", 5, 5) == [1]
    assert room.is_there(), "for what came before"
    room.settle()
    assert not room.is_there(), "another list would end the same way"
    room.drop("b", 2)
    assert room.is_there()


def test_to_give_way_takes_as_long_with_few_owners_as_with_many() -> None:
    assert _giving_way(10_000) < 20 * _giving_way(100)


def _giving_way(owners: int) -> float:
    """The processor time that objects take to which others give way, whose owners have the same."""
    room = Room(Bounds(10 * owners, 10 * owners, 10))
    for key in range(2 * owners):
        room.put(f"{key % owners}", key, 5)
    began = time.process_time()
    gone = [room.put(f"new {key}", key, 5) for key in range(-100, 0)]
    assert all(len(each) == 1 for each in gone)
    assert {key for (key,) in gone} <= {*range(2 * owners)}, "others"
    return time.process_time() - began


@pytest.mark.parametrize("seed", range(20))
def test_an_owner_with_less_than_an_equal_share_finds_room(seed: int) -> None:
    """Whatever comes and goes, in whatever order; and no more is taken than there is."""
    rng, room = random.Random(seed), Room(BOUNDS)
    inside: dict[Hashable, tuple[str, int]] = {}
    outside: dict[Hashable, tuple[str, int]] = {}
    for key in range(400):
        known = list(inside.items() | outside.items())
        if known and rng.random() < 0.4:
            gone, (owner, _) = rng.choice(known)
            room.drop(owner, gone)
            inside.pop(gone, None)
            outside.pop(gone, None)
        else:
            owner, size = rng.choice("aaaabbcd"), rng.randint(1, 40)
            inside[key] = owner, size
            for other in room.put(owner, key, size):
                outside[other] = inside.pop(other)
        taken = Counter[str]()
        for owner, size in inside.values():
            taken[owner] += size
        assert room.taken == taken.total() <= BOUNDS.all
        assert max(taken.values(), default=0) <= BOUNDS.owner
        assert room.outside == len(outside)
        share = BOUNDS.all // 4
        finds = any(
            size <= BOUNDS.one and taken[owner] + size <= share for owner, size in outside.values()
        )
        assert room.is_there() or not finds


def test_the_extender_lists_claims_again_once_there_is_room(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a metric says how many are not followed until then."""
    monkeypatch.setattr("scheduler_extender.kube.dra.MOST_WANTED", 300)
    monkeypatch.setattr("scheduler_extender.kube.dra.AGAIN", 0.0)
    shown: dict[str, Callable[[], int]] = {}
    for name in "cd":
        kube.fake.put(CLAIMS_PATH, json.loads(bytes(asking(name, exactly(1)))))
    api = ApiServer.from_kubeconfig(kube.fake.write_kubeconfig(tmp_path / "room"))
    source = KubeSource(api, Cache(time.monotonic))
    with source.following(lambda *_: None, lambda name, _, value: shown.update({name: value})):
        eventually(lambda: shown["claims_not_followed"]() == 1)
        kube.fake.remove(f"{GROUP}/namespaces/ns/resourceclaims/c")
        eventually(lambda: shown["claims_not_followed"]() == 0)
