"""The one idiom for hashes of frozen values: worked out once, and never another's."""

from dataclasses import dataclass, field, replace

from topology.core.admission import DeviceManager
from topology.core.graph import AllocatorConfig
from topology.core.guaranteedcapacity import RequestClass
from topology.core.memo import hashed_once
from topology.machines import machine


class Part:
    """Counts how often it is hashed."""

    def __init__(self) -> None:
        self.asked = 0

    def __hash__(self) -> int:
        self.asked += 1
        return 7


@hashed_once
@dataclass(frozen=True)
class Whole:
    part: Part
    name: str = field(default="", compare=False)


def test_the_parts_are_hashed_once() -> None:
    part = Part()
    whole = Whole(part)
    assert part.asked == 0
    assert {hash(whole), hash(whole)} == {hash(whole)}
    assert part.asked == 1


def test_what_does_not_compare_is_not_hashed() -> None:
    part = Part()
    assert Whole(part, "a") == Whole(part, "b")
    assert hash(Whole(part, "a")) == hash(Whole(part, "b"))


def test_a_changed_copy_has_its_own_hash() -> None:
    two = RequestClass(2)
    known = {two: "two"}
    three = replace(two, count=3)
    assert three not in known
    assert replace(three, count=2) in known


def test_equal_kubelets_are_one_key() -> None:
    shape = machine("dgx1-v100").topology("n").shape
    one, two = (DeviceManager(shape, AllocatorConfig("best-effort")) for _ in range(2))
    assert one is not two
    assert {one: "there"}[two] == "there"
    assert DeviceManager(shape, AllocatorConfig("best-effort"), 2) not in {one}
