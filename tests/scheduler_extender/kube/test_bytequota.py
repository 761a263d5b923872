"""Room that owners share."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path

import pytest

from scheduler_extender.kube.bytequota import Bounds, ByteQuota
from scheduler_extender.kube.drasinks import CLAIMS_PATH, GROUP
from scheduler_extender.kube.source import KubeSource
from scheduler_extender.state.cluster.cache import Cache
from tests.dranodes import asking, exactly
from tests.scheduler_extender.conftest import Kube
from tests.waiting import eventually
from topology.kubeapi.apiserver import ApiServer

BOUNDS = Bounds(all=100, owner=60, one=30)


def test_an_owner_and_an_object_have_bounds() -> None:
    quota = ByteQuota(BOUNDS)
    assert quota.put("a", 1, 31) == [1]
    assert quota.put("a", 2, 30) == quota.put("a", 3, 30) == []
    assert quota.put("a", 4, 1) == [4]
    assert (quota.taken, quota.outside) == (60, 2)
    quota.drop("a", 2)
    assert quota.is_there()
    quota.drop("a", 4)
    assert not quota.is_there(), "there is none for an object that is too large by itself"
    assert (quota.taken, quota.outside) == (30, 1)


def test_the_owner_with_most_gives_way_to_owners_with_less() -> None:
    quota = ByteQuota(BOUNDS)
    for key in range(6):
        assert quota.put("a", key, 10) == []
    for key in range(6, 10):
        assert quota.put("b", key, 10) == []
    assert quota.put("b", 10, 10) == [5], "the last of the owner that has most"
    assert quota.put("b", 11, 10) == [11], "no more than an equal share"
    assert not quota.is_there()
    assert quota.put("c", 12, 10) in ([4], [10])
    quota.drop("a", 0)
    assert quota.is_there()


def test_a_list_that_leaves_something_outside_is_not_taken_again_and_again() -> None:
    """A later object may make an earlier one give way that is larger than it needs."""
    quota = ByteQuota(BOUNDS)
    for key, size in enumerate((30, 30)):
        assert quota.put("a", key, size) == []
        assert quota.put("b", key + 2, size - 10) == []
    assert quota.put("a", 4, 10) == [4]
    assert quota.put("c", 5, 5) == [1]
    assert quota.is_there(), "for what came before"
    quota.settle()
    assert not quota.is_there(), "another list would end the same way"
    quota.drop("b", 2)
    assert quota.is_there()


def test_to_give_way_takes_as_long_with_few_owners_as_with_many() -> None:
    assert _giving_way(10_000) < 20 * _giving_way(100)


def _giving_way(owners: int) -> float:
    """The processor time that objects take to which others give way, whose owners have the same."""
    quota = ByteQuota(Bounds(10 * owners, 10 * owners, 10))
    for key in range(2 * owners):
        quota.put(f"{key % owners}", key, 5)
    began = time.process_time()
    gone = [quota.put(f"new {key}", key, 5) for key in range(-100, 0)]
    assert all(len(each) == 1 for each in gone)
    assert {key for (key,) in gone} <= {*range(2 * owners)}, "others"
    return time.process_time() - began


@pytest.mark.parametrize("seed", range(20))
def test_an_owner_with_less_than_an_equal_share_finds_room(seed: int) -> None:
    """Whatever comes and goes, in whatever order; and no more is taken than there is."""
    rng, quota = random.Random(seed), ByteQuota(BOUNDS)
    inside: dict[Hashable, tuple[str, int]] = {}
    outside: dict[Hashable, tuple[str, int]] = {}
    for key in range(400):
        known = list(inside.items() | outside.items())
        if known and rng.random() < 0.4:
            gone, (owner, _) = rng.choice(known)
            quota.drop(owner, gone)
            inside.pop(gone, None)
            outside.pop(gone, None)
        else:
            owner, size = rng.choice("aaaabbcd"), rng.randint(1, 40)
            inside[key] = owner, size
            for other in quota.put(owner, key, size):
                outside[other] = inside.pop(other)
        taken = Counter[str]()
        for owner, size in inside.values():
            taken[owner] += size
        assert quota.taken == taken.total() <= BOUNDS.all
        assert max(taken.values(), default=0) <= BOUNDS.owner
        assert quota.outside == len(outside)
        share = BOUNDS.all // 4
        finds = any(
            size <= BOUNDS.one and taken[owner] + size <= share for owner, size in outside.values()
        )
        assert quota.is_there() or not finds


def test_the_extender_lists_claims_again_once_there_is_room(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a metric says how many are not followed until then."""
    monkeypatch.setattr("scheduler_extender.kube.drasinks.MOST_WANTED", 300)
    monkeypatch.setattr("scheduler_extender.kube.drasinks.AGAIN", 0.0)
    shown: dict[str, Callable[[], int]] = {}
    for name in "cd":
        kube.fake.put(CLAIMS_PATH, json.loads(bytes(asking(name, exactly(1)))))
    api = ApiServer.from_kubeconfig(kube.fake.write_kubeconfig(tmp_path / "room"))
    source = KubeSource(api, Cache(time.monotonic))
    with source.following(lambda *_: None, lambda name, _, value: shown.update({name: value})):
        eventually(lambda: shown["claims_not_followed"]() == 1)
        kube.fake.remove(f"{GROUP}/namespaces/ns/resourceclaims/c")
        eventually(lambda: shown["claims_not_followed"]() == 0)
