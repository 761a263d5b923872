"""How many browsers may listen for events at one time: never more, and never fewer for good."""

import asyncio
from collections import Counter

import pytest
from fastapi import FastAPI
from starlette.types import Message, Scope

from scheduler_extender.http.bothports import add_errors
from scheduler_extender.serving import in_memory
from scheduler_extender.web import live, routes
from tests.scheduler_extender.web.cluster import Building
from tests.waiting import PATIENCE

ROOM = 3
ASKED = 40
# A request, as servers of either kind make it: 2.3 says that a send after the end is no error.
SCOPE: Scope = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/map/events",
    "raw_path": b"/map/events",
    "query_string": b"",
    "root_path": "",
    "headers": [],
}


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "LISTENERS", ROOM)
    monkeypatch.setattr(live, "EVERY", 0.01)
    monkeypatch.setattr(live, "range", lambda life: iter(int, 1), raising=False)  # without an end


def app() -> FastAPI:
    service = in_memory(Building().cluster)
    found = FastAPI()
    routes.add_map(found, service)
    add_errors(found)
    return found


class Browser:
    """One that asks for the events, and reads until it :attr:`leaves`."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self.status = 0
        self.answered = asyncio.Event()

    async def ask(self, of: FastAPI, version: str) -> None:
        asgi = {"version": "3.0", "spec_version": version}
        await of({**SCOPE, "asgi": asgi}, self._receive, self._send)

    async def _receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.leaves.is_set():
            raise OSError("the reader is gone")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.answered.set()


@pytest.mark.parametrize("version", ["2.3", "2.4"])
def test_simultaneous_listeners_are_all_counted(version: str) -> None:
    async def play() -> None:
        served = app()
        for _ in range(2):  # as many as before, once those have left
            await _fill(served, version)

    asyncio.run(play())


async def _fill(served: FastAPI, version: str) -> None:
    """As many browsers as there is room for get the events, and all others nothing."""
    browsers = [Browser() for _ in range(ASKED)]
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        for each in browsers:
            tasks.create_task(_quietly(each, served, version))
        for each in browsers:
            await each.answered.wait()
        statuses = Counter(each.status for each in browsers)
        assert statuses == {200: ROOM, 503: ASKED - ROOM}
        for each in browsers:
            each.leaves.set()


@pytest.mark.parametrize("version", ["2.3", "2.4"])
def test_a_listener_that_goes_before_the_first_event_is_not_counted(version: str) -> None:
    async def play() -> None:
        served = app()
        for _ in range(2 * ROOM):
            gone = Browser()
            gone.leaves.set()
            async with asyncio.timeout(PATIENCE):
                await _quietly(gone, served, version)
        await _fill(served, version)
        cancelled = [asyncio.create_task(_quietly(Browser(), served, version)) for _ in range(ROOM)]
        await asyncio.sleep(0)
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        await _fill(served, version)

    asyncio.run(play())


async def _quietly(browser: Browser, served: FastAPI, version: str) -> None:
    """What a server does: a reader that is gone is no error of the app's."""
    try:
        await browser.ask(served, version)
    except Exception as error:
        if not browser.leaves.is_set():
            raise AssertionError(f"the app failed: {error!r}") from error
