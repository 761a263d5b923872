"""How much of people's work runs at one time, however many ask."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPConnection

import pytest

from scheduler_extender.clientlimits import PEOPLE_WAITING, SEARCHES_WAITING
from scheduler_extender.http.requestqueue import PIECES, RequestQueue
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.web.pages import Pages
from tests.nodes import pod, switched
from tests.scheduler_extender.serving import Running, running
from tests.waiting import PATIENCE, eventually


class Work:
    """Counts what runs at one time, and lets nothing go on before ``go_on`` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = self.at_once = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, *_: object, **__: object) -> None:
        with self._lock:
            self.begun += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        self.go_on.wait(PATIENCE)
        with self._lock:
            self.at_once -= 1

    def before(self, then: Callable[..., object]) -> Callable[..., object]:
        def both(*given: object, **named: object) -> object:
            self()
            return then(*given, **named)

        return both


@pytest.fixture
def work() -> Iterator[Work]:
    found = Work()
    yield found
    found.go_on.set()


@contextmanager
def held(work: Work, monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Running]:
    """A service whose cluster, or snapshots, answer such questions of people only when told to."""
    with running(switched(8, "a"), switched(8, "b")) as service:
        asked = getattr(Snapshot, name, None)
        if name == "node_info":
            monkeypatch.setattr(service.cluster, name, work.before(service.cluster.node_info))
        elif isinstance(asked, cached_property):
            monkeypatch.setattr(Snapshot, name, property(work.before(asked.func)))
        else:
            monkeypatch.setattr(Snapshot, name, work.before(getattr(Snapshot, name)))
        try:
            yield service
        finally:
            work.go_on.set()


@dataclass(frozen=True)
class Answer:
    status: int
    again: str | None
    body: bytes


def client(service: Running) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", service.ports[1], timeout=PATIENCE)


def get(service: Running, path: str) -> Answer:
    with closing(client(service)) as asking:
        asking.request("GET", path)
        found = asking.getresponse()
        return Answer(found.status, found.headers["retry-after"], found.read())


async def until(happens: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, happens)


@pytest.mark.parametrize(
    ("path", "asks", "threads"),
    [
        pytest.param("/v1/nodes", "nodes", 1, id="nodes"),
        pytest.param("/v1/nodes/{}", "node_info", 1, id="a node"),
        pytest.param("/v1/explain/a/{}", "pod_named", 1, id="explain"),
        pytest.param("/v1/snapshot", "unbound", 1, id="snapshot"),
        pytest.param("/map", "nodes", 2, id="map"),
        pytest.param("/map/nodes/{}", "node_info", 2, id="the map's node"),
    ],
)
def test_readers_are_bounded_and_other_requests_do_not_wait(
    path: str, asks: str, threads: int, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = PEOPLE_WAITING + 10
    with held(work, monkeypatch, asks) as service, ThreadPoolExecutor(readers) as pool:
        asked = [pool.submit(get, service, path.format(n)) for n in range(readers)]
        eventually(lambda: work.begun)
        if path not in ("/v1/nodes",):  # all of them wait for one answer
            eventually(lambda: any(each.done() for each in asked))
        assert service.metrics.get("/healthz").status_code == 200
        assert service.metrics.get("/metrics").status_code == 200
        work.go_on.set()
        answers = [each.result() for each in asked]
    assert work.most <= threads
    turned_away = [answer for answer in answers if answer.status == 503]
    assert all(answer.again == "1" for answer in turned_away)
    assert {answer.status for answer in answers} <= {200, 404, 503}
    assert len(turned_away) < readers
    if path == "/v1/nodes":
        assert not turned_away
        assert len({answer.body for answer in answers}) == 1


def test_the_verbs_go_on_while_people_read(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(work, monkeypatch, "nodes") as service, ThreadPoolExecutor(60) as pool:
        asked = [pool.submit(get, service, path) for path in ("/v1/nodes", "/map") * 20]
        eventually(lambda: work.at_once >= 2)
        passed = service.filter(pod(2, {"link": "nvlink"}), "a", "b")
        assert passed["NodeNames"] == ["a", "b"]
        work.go_on.set()
        for each in asked:
            each.result()


def test_the_map_waits_for_no_question_of_the_what_if_box(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take seconds; one question more is refused with that reason."""
    monkeypatch.setattr(Pages, "_foreseen", work.before(lambda *_: ([], 0)))
    with running(switched(8, "a")) as service, ThreadPoolExecutor(20) as pool:

        def ask() -> int:
            with closing(client(service)) as asking:
                asking.request("POST", "/map/what-if", "pod=a")
                return asking.getresponse().status

        try:
            asked = [pool.submit(ask) for _ in range(20)]
            left_over = 20 - 1 - SEARCHES_WAITING
            eventually(lambda: work.at_once and sum(each.done() for each in asked) == left_over)
            assert get(service, "/map").status == 200
        finally:
            work.go_on.set()
        assert Counter(each.result() for each in asked) == {200: 20 - left_over, 503: left_over}


def test_requests_before_an_answer_has_begun_share_it(work: Work) -> None:
    async def play() -> list[int]:
        queue = RequestQueue(1, 3)

        def made() -> int:
            work()
            return work.begun

        first = asyncio.create_task(queue.shared("key", made))
        await until(lambda: work.begun == 1)
        others = [asyncio.create_task(queue.shared("key", made)) for _ in range(40)]
        await asyncio.sleep(0)
        work.go_on.set()
        return [await first, *[await other for other in others]]

    assert asyncio.run(play()) == [1, *[2] * 40]


def test_a_stream_is_made_a_few_pieces_at_a_time() -> None:
    async def play() -> list[bytes]:
        queue = RequestQueue(1, 2)
        taken: list[int] = []

        def pieces(name: int) -> Iterator[bytes]:
            for _ in range(3 * PIECES):
                taken.append(name)
                yield b"x"

        first, second = queue.pieces(pieces(1)), queue.pieces(pieces(2))
        found = [await anext(first), await anext(second)]  # the first one waits, and holds nothing
        assert taken == [1] * PIECES + [2] * PIECES
        found += [piece async for piece in second] + [piece async for piece in first]
        return found

    assert asyncio.run(play()) == [b"x" * PIECES] * 6
