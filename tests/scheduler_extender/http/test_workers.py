"""The threads that answer verbs: few, in order, and gone when they are closed."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_extender.http.workers import Workers
from tests.waiting import PATIENCE, eventually


def serve(use: Callable[[Workers], Any], most: int = 2) -> Any:
    """What a coroutine gets of workers, on a loop of its own; they are closed in the end."""

    async def used() -> Any:
        workers = Workers(most)
        try:
            return await use(workers)
        finally:
            workers.close()

    return asyncio.run(used())


def test_one_question_after_the_other_is_answered_by_one_thread() -> None:
    async def ask(workers: Workers) -> list[threading.Thread]:
        return [await workers.run(threading.current_thread) for _ in range(20)]

    threads = serve(ask)
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()


def test_no_more_than_so_many_threads_are_started_and_all_questions_are_answered() -> None:
    both = threading.Barrier(2)

    def meet(number: int) -> tuple[int, threading.Thread]:
        both.wait(PATIENCE)
        return number, threading.current_thread()

    async def ask(workers: Workers) -> list[tuple[int, threading.Thread]]:
        return await asyncio.gather(*(workers.run(meet, number) for number in range(20)))

    answers = serve(ask)
    assert [number for number, _ in answers] == list(range(20))
    assert len({thread for _, thread in answers}) == 2


def test_what_the_work_raises_is_raised() -> None:
    async def ask(workers: Workers) -> int:
        with pytest.raises(ValueError, match="invalid literal"):
            await workers.run(int, "x")
        return await workers.run(int, "7")

    assert serve(ask) == 7


@pytest.mark.parametrize("most", [1, 2])
def test_a_client_that_goes_away_delays_no_other(most: int) -> None:
    goes_on = threading.Event()

    async def ask(workers: Workers) -> int:
        gone = asyncio.ensure_future(workers.run(goes_on.wait, PATIENCE))
        await asyncio.sleep(0)
        gone.cancel()
        other = asyncio.ensure_future(workers.run(int, "7"))
        await asyncio.sleep(0)
        goes_on.set()
        return await other

    assert serve(ask, most) == 7


def test_the_threads_end_after_what_was_asked_even_without_the_loop() -> None:
    goes_on, found = threading.Event(), list[threading.Thread]()

    def work() -> None:
        found.append(threading.current_thread())
        goes_on.wait(PATIENCE)

    async def ask(workers: Workers) -> None:
        asking = asyncio.ensure_future(workers.run(work))
        await asyncio.sleep(0)
        asking.cancel()

    serve(ask, most=1)
    eventually(lambda: bool(found))
    goes_on.set()
    found[0].join(PATIENCE)
    assert not found[0].is_alive()
