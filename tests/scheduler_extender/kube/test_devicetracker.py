"""Devices of many nodes: objects are taken in piece by piece, and read without a lock."""

import threading
from collections import Counter
from typing import Any

import pytest

from scheduler_extender.kube import nodedevices
from scheduler_extender.kube.draobjects import Slice, TaintRule
from scheduler_extender.state.node.nodeinfo import Offer
from tests.dranodes import (
    DRIVER,
    IS_GPU,
    NODE,
    DraWorld,
    a_slice,
    asking,
    device,
    device_class,
    exactly,
    raw,
    slice_of,
    two_pairs,
)
from topology.core.devices import NodeName
from topology.core.dra import served
from topology.core.graph import NodeTopology
from topology.core.memo import forget
from topology.core.report import Report


class CountingLock:
    """A lock that counts how often it is taken."""

    def __init__(self) -> None:
        self.lock, self.taken, self.held = threading.Lock(), 0, False

    def __enter__(self) -> None:
        self.lock.acquire()
        self.taken, self.held = self.taken + 1, True

    def __exit__(self, *_: object) -> None:
        self.held = False
        self.lock.release()


def test_a_change_of_many_nodes_is_taken_in_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for the lock gets it between two pieces."""
    world, lock, put = DraWorld(), CountingLock(), Counter[int]()
    names = [NodeName(f"many-{n}") for n in range(24)]
    for name in names:
        world.speak(1, name)
        world.slices.apply(slice_of(name, device(0), name=name, pool=name))

    def noted(*given: Any) -> tuple[NodeTopology, Report]:
        put[lock.taken] += 1
        return served(*given)

    monkeypatch.setattr(world.nodes, "_lock", lock)
    monkeypatch.setattr("scheduler_extender.kube.devicetracker.served", noted)
    world.classes.replace([device_class()], "")
    assert put.total() == len(names)
    assert max(put.values()) == 1
    assert {type(world.cluster.node_info(name).offer("nvidia.com/gpu")) for name in names} == {
        Offer
    }


def test_a_list_of_many_objects_is_taken_in_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    world, lock = two_pairs(), CountingLock()
    monkeypatch.setattr(world.nodes._tracker, "_lock", lock)
    monkeypatch.setattr("scheduler_extender.kube.devicetracker.PIECE", 1)
    world.claims.replace(iter([asking(f"c{n}", exactly(1)) for n in range(30)]), "1")
    assert lock.taken >= 30


def test_no_devices_are_read_while_the_lock_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may have thousands, and a selector takes its time for each."""
    world, locks = two_pairs(), (CountingLock(), CountingLock())
    for holder, lock in zip((world.nodes, world.nodes._tracker), locks, strict=True):
        monkeypatch.setattr(holder, "_lock", lock)
    read: list[bool] = []

    def noted(what: Any) -> Any:
        def call(*given: Any) -> Any:
            read.append(any(lock.held for lock in locks))
            return what(*given)

        return call

    monkeypatch.setattr(Slice, "devices", noted(Slice.devices))
    monkeypatch.setattr(nodedevices, "_meets", noted(nodedevices._meets))
    sick = raw(
        {
            "metadata": {"name": "sick"},
            "spec": {"taint": {"effect": "NoSchedule"}, "deviceSelector": {"driver": DRIVER}},
        }
    )
    world.claims.apply(asking("c", exactly(1, f"{IS_GPU} && true")))
    for step in (
        lambda: world.slices.apply(a_slice(device(0), device(1), generation=2)),
        lambda: world.classes.apply(device_class(expression=f"{IS_GPU} || false", made="2")),
        lambda: world.rules.apply(sick),
        lambda: world.rules.delete(sick),
        lambda: world.speak(2),
        lambda: world.cluster.foresees("ns", ("c",))(world.cluster.node_info(NODE)),
    ):
        forget()
        step()
    assert len(read) > 10
    assert not any(read)


def test_a_rule_is_compared_only_with_the_pools_that_it_selects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """500 rules and 1,000 nodes: not each against each."""
    world, made = DraWorld(), Counter[str]()
    world.classes.apply(device_class())
    names = [NodeName(f"many-{n}") for n in range(20)]
    for name in names:
        world.speak(1, name)
        world.slices.apply(slice_of(name, *map(device, range(4)), name=name, pool=name))
    selects: Any = vars(TaintRule)["selects"]

    def counted(rule: TaintRule) -> str | None:
        made[rule.key] += 1
        return selects.fget(rule)  # type: ignore[no-any-return]

    monkeypatch.setattr(TaintRule, "selects", property(counted))
    taint = {"key": "sick", "effect": "NoSchedule"}
    rules = [
        raw(
            {
                "metadata": {"name": name},
                "spec": {"taint": taint, "deviceSelector": {"pool": name, "device": "gpu-1"}},
            }
        )
        for name in names
    ]
    world.rules.replace(iter(rules), "1")
    assert max(made.values()) < len(names), "once or twice a rule, however many nodes there are"
    offers = [world.cluster.node_info(name).offer("nvidia.com/gpu") for name in names]
    assert all(isinstance(o, Offer) and o.availability.free == 0b1101 for o in offers)
