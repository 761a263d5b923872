"""The group reservations that were worked out last, as several threads use them."""

import threading
from collections.abc import Callable

from scheduler_extender.state.answers.classes import EquivalenceClasses
from scheduler_extender.state.cluster.snapshot import LastGroupReservations
from scheduler_extender.state.groups.groupreservations import GroupReservations


class Key:
    """A key; something else happens while it is compared."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.meanwhile = meanwhile

    def __eq__(self, other: object) -> bool:
        self.meanwhile()
        return True

    def __hash__(self) -> int:
        return 0


def test_a_reader_brings_back_no_reservations_that_were_cleared_or_replaced() -> None:
    lock = threading.RLock()
    last = LastGroupReservations(lock, EquivalenceClasses(lock))
    old, new = GroupReservations(), GroupReservations()
    last.put(Key(last.clear), old, (), 0)
    assert last.get("key", 0) is old
    assert last.get("key", 0) is None
    last.put(Key(lambda: last.put("key", new, (), 0)), old, (), 0)
    assert last.get("key", 0) is old
    assert last.get("key", 0) is new
