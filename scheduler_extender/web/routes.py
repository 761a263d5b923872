"""The map's routes on the admin port, and the door before them."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from scheduler_extender.http.bothports import error_line
from scheduler_extender.http.desk import Desk, FullError
from scheduler_extender.http.endpoint import BodyError, read
from scheduler_extender.http.service import Service
from scheduler_extender.limits import PEOPLE_WAITING, SEARCHES_WAITING
from scheduler_extender.web.examples import EXAMPLES
from scheduler_extender.web.glance import FILTERS, Filters
from scheduler_extender.web.guard import PREFIX, Guard
from scheduler_extender.web.html import STATIC, page, static_file
from scheduler_extender.web.live import Listeners, TooManyListenersError
from scheduler_extender.web.pages import MAX_FORM, MAX_POD, Pages
from scheduler_extender.web.sessions import LOGIN, WHO, Sessions

MAX_WORD = 1000
"""Characters of a word in an address that are read."""
THREADS = 2
"""Pages that are made at one time."""


def add_map(app: FastAPI, service: Service) -> Listeners:
    """Add the pages; gives back the streams, which whoever stops the service closes."""
    pages = Pages(service.cluster)
    listeners = Listeners(lambda: service.cluster.version, service.cluster.today)
    desk = Desk(THREADS, PEOPLE_WAITING)
    _add_pages(app, pages, desk)
    _add_what_if(app, service, pages, Desk(1, SEARCHES_WAITING))  # the map waits for no question
    _add_rest(app, listeners)
    return listeners


def guard_map(app: FastAPI, service: Service, *, signing_in: bool) -> None:
    """Put the door before the pages; after whatever else stands before the app.

    With ``signing_in`` a gate is behind it, which asks for a token.
    """
    if signing_in:
        app.add_middleware(Sessions, bodies=service.bodies)
    app.add_middleware(Guard)


def _signed_in(request: Request) -> bool:
    return bool(request.scope.get("gpu-topology.signed-in"))


def _filters(request: Request) -> Filters:
    """The filters of an address."""
    return Filters(**{name: _word(request, name) for name in FILTERS})


def _word(request: Request, name: str) -> str:
    return request.query_params.get(name, "")[:MAX_WORD].strip()


def _page_number(request: Request) -> int:
    """Which page of a list is asked for; the first one if that is no number."""
    word = _word(request, "page")
    return int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 1


def _html(text: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(text, status)


def _add_pages(app: FastAPI, pages: Pages, desk: Desk) -> None:
    @app.get(PREFIX, include_in_schema=False)
    async def glance(request: Request) -> Response:
        filters, signed_in = _filters(request), _signed_in(request)
        return _html(await desk.run(lambda: pages.map(filters, signed_in=signed_in)))

    @app.get(f"{PREFIX}/nodes", include_in_schema=False)
    async def nodes(request: Request) -> Response:
        filters, at, signed_in = _filters(request), _page_number(request), _signed_in(request)
        return _html(await desk.run(lambda: pages.nodes(filters, at, signed_in=signed_in)))

    @app.get(f"{PREFIX}/nodes/{{name:path}}", include_in_schema=False)
    async def node(request: Request, name: str) -> Response:
        signed_in = _signed_in(request)
        found = await desk.run(lambda: pages.node(name, signed_in=signed_in))
        if found is None:
            problem = f"Nobody has told us of a node {name[:253]}."
            return _problem("Unknown node", problem, 404, signed_in=signed_in)
        return _html(found)

    @app.get(f"{PREFIX}/waiting", include_in_schema=False)
    async def waiting(request: Request) -> Response:
        name, signed_in = _word(request, "name"), _signed_in(request)
        return _html(await desk.run(lambda: pages.waiting(name, signed_in=signed_in)))


def _add_what_if(app: FastAPI, service: Service, pages: Pages, desk: Desk) -> None:
    @app.get(f"{PREFIX}/what-if", include_in_schema=False)
    async def form(request: Request) -> Response:
        text = EXAMPLES.get(_word(request, "example"), "")
        return _html(pages.what_if_form(text, signed_in=_signed_in(request)))

    @app.post(f"{PREFIX}/what-if", include_in_schema=False)
    async def ask(request: Request) -> Response:
        signed_in = _signed_in(request)
        held = service.bodies.hold()
        try:  # a form may write each byte as three
            body = await read(request.scope, request.receive, 3 * MAX_FORM + 4096, held)
            given = parse_qs(body.decode("ascii"), max_num_fields=20, keep_blank_values=True)
            text = given.get("pod", [""])[0].replace("\r\n", "\n")
            copies = given.get("copies", [""])[0]
            answer = await desk.run(lambda: pages.what_if(text, copies, signed_in=signed_in))
            return _html(answer, 413 if len(text.encode()) > MAX_POD else 200)
        except BodyError as error:
            problem = f"{error}. Go back: your browser still has the text."
            return _problem("Not asked", problem, error.status, signed_in=signed_in)
        except FullError:
            problem = "Other questions are being answered: ask again."
            return _problem("Not asked", problem, 503, signed_in=signed_in)
        except ValueError as error:
            problem = f"the form cannot be read: {error}"
            return _problem("Not asked", problem, 400, signed_in=signed_in)
        finally:
            held.release()


def _add_rest(app: FastAPI, listeners: Listeners) -> None:
    @app.get(f"{PREFIX}/events", include_in_schema=False)
    async def events() -> Response:
        return _Events(listeners)

    @app.get(f"{PREFIX}/static/{{name}}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in STATIC:
            return _problem("Not found", "There is no such file.", 404, signed_in=False)
        headers = {"cache-control": "private, max-age=300"}
        return Response(static_file(name), media_type=STATIC[name], headers=headers)

    @app.get(WHO, include_in_schema=False, status_code=204)
    async def session() -> Response:
        return Response(status_code=204)

    @app.get(LOGIN, include_in_schema=False)
    async def login() -> Response:
        """Where a token is asked for, the door answers this path itself."""
        problem = "This port asks for no token here."
        return _problem("Nothing to sign in to", problem, 200, signed_in=False)


class _Events(Response):
    """A stream of events. It takes its place in the moment in which it is answered, and lets go of
    it when the answer is over: also where the reader has gone before the first event."""

    def __init__(self, listeners: Listeners) -> None:
        super().__init__()
        self._listeners = listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._listeners.place():
                events = self._listeners.events()
                answer = StreamingResponse(events, media_type="text/event-stream")
                await answer(scope, receive, send)
        except TooManyListenersError:
            line = error_line("too many browsers listen: look again later")
            await Response(line, 503, media_type="application/json")(scope, receive, send)


def _problem(heading: str, problem: str, status: int, *, signed_in: bool) -> HTMLResponse:
    text = page("problem.html", "", signed_in=signed_in, heading=heading, problem=problem)
    return _html(text, status)
