"""A long answer may be interrupted between two of its parts, and loses nothing by it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count

import pytest

from tests.nodes import score_of
from topology.core import memo
from topology.core.admission import DeviceManager
from topology.core.availability import Availability
from topology.core.graph import AllocatorConfig
from topology.core.links import LinkKind
from topology.core.memo import OutOfTimeError, bytes_of, forget, interrupted_at
from topology.core.placement import assess
from topology.core.requests import Constraints, gpu_request
from topology.core.scoring import PRIOR
from topology.machines import machine

PAIRS = gpu_request(3, Constraints(link=LinkKind.NVLINK))


def after(parts: int) -> AbstractContextManager[None]:
    """Interrupts what is worked out inside once so many parts have been begun."""
    return interrupted_at(count(1).__next__, parts + 1)


NEVER = 10**9  # parts


@contextmanager
def nothing_remembered() -> Iterator[None]:
    forget()
    yield
    forget()


def question(name: str) -> Callable[[], object]:
    shape = machine(name).topology("n").shape
    node = DeviceManager(shape, AllocatorConfig("best-effort"))
    now = Availability(shape.all_gpus)

    def ask() -> object:
        assessed = assess(node, now, PAIRS)
        return assessed, score_of(node, now, PAIRS, assessed, PRIOR)

    return ask


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx2", "titanv-8"])
def test_an_interrupted_answer_is_gone_on_with(name: str) -> None:
    ask = question(name)
    with nothing_remembered():
        expected = ask()
    with nothing_remembered():
        interruptions, found = 0, None
        while found is None:
            # Each part is small: a few dozen at a time come to the end all the same.
            try:
                with after(30):
                    found = ask()
            except OutOfTimeError:
                interruptions += 1
                assert interruptions < 1000
        assert found == expected
        assert interruptions > 0


def test_the_tables_of_sixteen_gpus_are_filled_in_parts() -> None:
    parts = dict[str, int]()
    for name in ("dgx2", "dgx1-v100"):
        looks = count(1)
        with nothing_remembered(), interrupted_at(looks.__next__, NEVER):
            question(name)()
        parts[name] = next(looks) - 1
    assert parts["dgx2"] > 20  # of 16 GPUs: its tables by size and number of GPUs


def test_of_two_deadlines_on_one_clock_the_earlier_counts() -> None:
    for outer, inner in ((5, NEVER), (NEVER, 5)):
        looks = count(1)
        clock = looks.__next__
        with (
            nothing_remembered(),
            pytest.raises(OutOfTimeError),
            interrupted_at(clock, outer),
            interrupted_at(clock, inner),
        ):
            question("dgx1-v100")()
        assert next(looks) == 6  # it was looked at once for each part


def test_an_inner_check_ends_with_its_block() -> None:
    with nothing_remembered(), after(NEVER):
        with pytest.raises(OutOfTimeError), after(0):
            question("dgx1-v100")()
        question("dgx1-v100")()
    with nothing_remembered():
        question("titanv-8")()


def test_an_outer_budget_interrupts_inner_blocks_too() -> None:
    with (
        nothing_remembered(),
        pytest.raises(OutOfTimeError),
        after(0),
        after(NEVER),
    ):
        question("dgx1-v100")()


def test_what_a_node_has_worked_out_of_itself_is_weighed_too() -> None:
    node = machine("dgx1-v100").topology("n")
    positions = node.position_of_uuid  # kept in the node
    assert bytes_of(positions) == bytes_of(tuple(positions.items()))
    assert bytes_of(node) > bytes_of(positions)


def test_what_a_question_is_about_is_weighed_whether_names_are_given_or_not() -> None:
    @memo.memoized
    def answer(about: object, beside: object = None, more: object = None) -> None:
        del about, beside, more

    def weighed(*args: object, **named: object) -> int:
        forget()
        answer(*args, **named)
        memo._weigh()
        return memo._now.bytes

    long = tuple(f"{n}" * 100 for n in range(4))
    assert weighed(long) > 1000
    assert weighed(long, beside=1, more=2) >= weighed(long, 1, 2)
