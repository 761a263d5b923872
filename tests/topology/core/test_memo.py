"""A long answer may be interrupted between two of its parts, and loses nothing by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from topology.core.admission import Kubelet
from topology.core.availability import Availability
from topology.core.graph import AllocatorFacts
from topology.core.links import LinkKind
from topology.core.memo import forget, interrupted_by
from topology.core.placement import assess
from topology.core.requests import Constraints, gpu_request
from topology.core.scoring import PRIOR, merit
from topology.machines import machine

PAIRS = gpu_request(3, Constraints(link=LinkKind.NVLINK))


class TooLateError(Exception):
    """The time is up."""


def after(parts: int) -> Callable[[], None]:
    """A check that interrupts once so many parts have been begun."""
    begun = 0

    def check() -> None:
        nonlocal begun
        begun += 1
        if begun > parts:
            raise TooLateError

    return check


@contextmanager
def nothing_remembered() -> Iterator[None]:
    forget()
    yield
    forget()


def question(name: str) -> Callable[[], object]:
    shape = machine(name).topology("n").shape
    node = Kubelet(shape, AllocatorFacts("best-effort"))
    now = Availability(shape.all_gpus)

    def ask() -> object:
        assessed = assess(node, now, PAIRS)
        return assessed, merit(node, now, PAIRS, assessed, PRIOR)

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
                with interrupted_by(after(30)):
                    found = ask()
            except TooLateError:
                interruptions += 1
                assert interruptions < 1000
        assert found == expected
        assert interruptions > 0


def test_the_tables_of_sixteen_gpus_are_filled_in_parts() -> None:
    parts = 0

    def count() -> None:
        nonlocal parts
        parts += 1

    with nothing_remembered(), interrupted_by(count):
        question("dgx2")()
    with nothing_remembered(), interrupted_by(count):
        before, parts = parts, 0
        question("dgx1-v100")()
    assert before > 20  # one machine of 16 GPUs alone: its tables by size and number of GPUs


def test_an_inner_check_ends_with_its_block() -> None:
    with nothing_remembered(), interrupted_by(lambda: None):
        with pytest.raises(TooLateError), interrupted_by(after(0)):
            question("dgx1-v100")()
        question("dgx1-v100")()
    with nothing_remembered():
        question("titanv-8")()


def test_whoever_asked_for_all_of_it_interrupts_inner_blocks_too() -> None:
    with (
        nothing_remembered(),
        pytest.raises(TooLateError),
        interrupted_by(after(0)),
        interrupted_by(lambda: None),
    ):
        question("dgx1-v100")()
