"""The map's routes on the admin port, and the headers of its pages."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from urllib.parse import parse_qs

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_extender.clientlimits import PEOPLE_WAITING, SEARCHES_WAITING
from scheduler_extender.http.bothports import Service
from scheduler_extender.http.endpoint import BodyError, read
from scheduler_extender.http.requestqueue import QueueFullError, RequestQueue, Streamed
from scheduler_extender.web.examples import EXAMPLES
from scheduler_extender.web.html import STATIC, page, static_file
from scheduler_extender.web.live import LISTENERS, Listeners
from scheduler_extender.web.overview import FILTERS, Filters
from scheduler_extender.web.pages import MAX_FORM, MAX_POD, Pages

PREFIX = "/map"
# The pages may load only our own style sheet and script, and no page may stand in a frame.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# The most characters of a word in an address that are read: a namespace, a slash and a name.
MAX_WORD = 317
THREADS = 2  # the most pages that are made at one time


def add_map(app: FastAPI, service: Service, dashboard: str = "") -> Listeners:
    """Add the pages. Return the streams, which must be closed when the service stops.

    ``dashboard`` is the address of a Grafana dashboard that the pages link to.
    """
    pages = Pages(service.cluster, dashboard)
    listeners = Listeners(lambda: service.cluster.version, service.cluster.today)
    _add_pages(app, pages, RequestQueue(THREADS, PEOPLE_WAITING))
    # the map does not wait for what-if requests
    _add_what_if(app, service, pages, RequestQueue(1, SEARCHES_WAITING))
    _add_rest(app, listeners)
    app.add_middleware(_WithHeaders)
    return listeners


class _WithHeaders:
    """ASGI middleware that adds :data:`HEADERS` to the answers of the map's paths."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        path = scope.get("path", "")
        is_ours = path == PREFIX or path.startswith(f"{PREFIX}/")
        await self._app(scope, receive, with_headers if is_ours else send)


def _filters(request: Request) -> Filters:
    """Return the filters in an address."""
    return Filters(**{name: _word(request, name) for name in FILTERS})


def _word(request: Request, name: str) -> str:
    return request.query_params.get(name, "")[:MAX_WORD].strip()


def _number(request: Request) -> int:
    """Return the number of the page in an address."""
    word = _word(request, "page")
    return int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 1


def _add_pages(app: FastAPI, pages: Pages, queue: RequestQueue) -> None:
    @app.get(PREFIX, include_in_schema=False)
    async def overview(request: Request) -> Response:
        return HTMLResponse(await queue.run(partial(pages.map, _filters(request))))

    @app.get(f"{PREFIX}/nodes", include_in_schema=False)
    async def nodes(request: Request) -> Response:
        wanted = partial(pages.nodes, _filters(request), _number(request))
        return HTMLResponse(await queue.run(wanted))

    @app.get(f"{PREFIX}/nodes/{{name:path}}", include_in_schema=False)
    async def node(name: str, request: Request) -> Response:
        found = await queue.run(partial(pages.node, name, _filters(request)))
        if found is None:
            name = name[:MAX_WORD]
            near = await queue.run(partial(pages.near_nodes, name))
            problem = f"The extender does not know a node {name}."
            return _problem("Unknown node", problem, 404, f"{PREFIX}/nodes/", near)
        return HTMLResponse(found)

    @app.get(f"{PREFIX}/pods", include_in_schema=False)
    async def pods(request: Request) -> Response:
        wanted = partial(pages.pods, _filters(request), _number(request))
        return HTMLResponse(await queue.run(wanted))

    @app.get(f"{PREFIX}/pods/{{name:path}}", include_in_schema=False)
    async def pod(name: str) -> Response:
        name = name[:MAX_WORD]
        found = await queue.run(partial(pages.pod, name))
        if not found:
            near = await queue.run(partial(pages.near_pods, name))
            problem = f"The extender does not know a pod {name}, or the pod requests no GPUs."
            return _problem("Unknown pod", problem, 404, f"{PREFIX}/pods/", near)
        return HTMLResponse(found)

    @app.get(f"{PREFIX}/waiting", include_in_schema=False)
    async def waiting(request: Request) -> Response:
        return HTMLResponse(await queue.run(partial(pages.waiting, _filters(request))))


def _add_what_if(app: FastAPI, service: Service, pages: Pages, queue: RequestQueue) -> None:
    @app.get(f"{PREFIX}/what-if", include_in_schema=False)
    async def form(request: Request) -> Response:
        return HTMLResponse(pages.what_if_form(EXAMPLES.get(_word(request, "example"), "")))

    @app.post(f"{PREFIX}/what-if", include_in_schema=False)
    async def ask(request: Request) -> Response:
        try:
            with service.bodies.hold() as hold:  # a form may encode each byte as three
                body = await read(request.scope, request.receive, 3 * MAX_FORM + 4096, hold)
                given = parse_qs(body.decode("ascii"), max_num_fields=20, keep_blank_values=True)
                text = given.get("pod", [""])[0].replace("\r\n", "\n")
                copies = given.get("copies", [""])[0]
                answer = await queue.run(lambda: pages.what_if(text, copies))
                return HTMLResponse(answer, 413 if len(text.encode()) > MAX_POD else 200)
        except BodyError as error:
            told = f"{error}. Go back in your browser to get your text again."
            return _problem("Not evaluated", told, error.status)
        except QueueFullError:
            return _problem(
                "Not evaluated", "The extender is answering other requests. Try again.", 503
            )
        except ValueError as error:
            return _problem("Not evaluated", f"the form is unreadable: {error}", 400)


def _add_rest(app: FastAPI, listeners: Listeners) -> None:
    streams = RequestQueue(1, LISTENERS)  # anyio 4.6 forbids 0 threads; streams take none

    @app.get(f"{PREFIX}/events", include_in_schema=False)
    async def events() -> Response:
        async def begin() -> AsyncIterator[bytes]:
            return listeners.events()

        return Streamed(streams, begin, "text/event-stream")

    @app.get(f"{PREFIX}/static/{{name}}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in STATIC:
            return _problem("Not found", "This file does not exist.", 404)
        headers = {"cache-control": "private, max-age=300"}
        return Response(static_file(name), media_type=STATIC[name], headers=headers)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def door(request: Request) -> Response:
        """Redirect a browser without a path to the map."""
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        return RedirectResponse(PREFIX, 307)


def _problem(
    heading: str, problem: str, status: int, path: str = "", near: Sequence[str] = ()
) -> HTMLResponse:
    """Return a page that names a problem, and links to the objects ``near`` it, below ``path``."""
    return HTMLResponse(
        page("problem.html", "", heading=heading, problem=problem, path=path, near=near), status
    )
