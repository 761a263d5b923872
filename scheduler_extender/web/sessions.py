"""Signing in with a browser, which cannot send a bearer token by itself.

A form takes the token once. It stays here, in memory; the browser gets a random number in a cookie
that scripts cannot read (HttpOnly) and that is not sent along from other sites' pages
(SameSite=Strict). Cookies do not keep ports apart: on localhost the number goes to whatever else
listens there, and so it is good for the map alone, and is not the token. Every request is judged by
the :class:`.Gate` behind this with the token of its session, so a token or a right that is taken
away ends what a session can do.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers, QueryParams
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_extender.http.bothports import send_error
from scheduler_extender.http.endpoint import BodyError, read
from scheduler_extender.http.gate import MAX_TOKEN
from scheduler_extender.limits import Bodies
from scheduler_extender.web.guard import PREFIX, is_ours
from scheduler_extender.web.html import STATIC, page

COOKIE = "gpu-topology-map"
LOGIN, LOGOUT, WHO = f"{PREFIX}/login", f"{PREFIX}/logout", f"{PREFIX}/session"
"""The form, the end of a session, and a page that says nothing, by which a token is tried."""
OPEN = [f"{PREFIX}/static/{name}" for name in STATIC]
"""Paths that need no token: the form looks like the other pages."""
SESSIONS = 256
"""Sessions at one time; over it the one that was used least lately ends."""
SECONDS = 8 * 3600.0
"""For how long a session is good."""
MAX_FORM = MAX_TOKEN * 3 + 4096
"""Bytes of the form."""


@dataclass(frozen=True, slots=True)
class _Session:
    token: str
    until: float


class Sessions:
    """ASGI middleware before the gate. Event loop only. ``bodies`` is the budget of memory."""

    def __init__(
        self, app: ASGIApp, bodies: Bodies, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._bodies = bodies
        self._clock = clock
        self._kept: OrderedDict[bytes, _Session] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the form, or pass a request on with the token of its session."""
        path = scope["path"] if scope["type"] == "http" else ""
        if not is_ours(path) or path in OPEN or b"authorization" in dict(scope["headers"]):
            await self._app(scope, receive, send)
        elif path == LOGIN:
            answer = await self._login(scope, receive)
            await answer(scope, receive, send)
        elif path == LOGOUT and scope["method"] == "POST":
            self._kept.pop(_key(_cookie(scope)), None)
            answer = RedirectResponse(LOGIN, 303)
            answer.delete_cookie(COOKIE, path=PREFIX)
            await answer(scope, receive, send)
        else:
            await self._with_session(scope, receive, send)

    async def _with_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key(_cookie(scope))
        session = self._kept.get(key)
        if session is None or session.until <= self._clock():
            self._kept.pop(key, None)
            await self._ask_to_sign_in(scope, receive, send)
            return
        self._kept.move_to_end(key)
        ended = False

        async def unless_refused(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start" and message["status"] == 401:
                ended = True
            if not ended:
                await send(message)

        await self._app(_with_token(scope, session.token), receive, unless_refused)
        if ended:
            self._kept.pop(key, None)
            await self._ask_to_sign_in(scope, receive, send)

    async def _ask_to_sign_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET" or scope["path"] == f"{PREFIX}/events":
            await send_error(send, 401, f"sign in first: {LOGIN}")
            return
        wanted = scope["path"]
        if query := scope.get("query_string", b"").decode("latin-1"):
            wanted += f"?{query}"
        answer = RedirectResponse(f"{LOGIN}?next={quote(wanted, safe='')}", 303)
        await answer(scope, receive, send)

    async def _login(self, scope: Scope, receive: Receive) -> Response:
        if scope["method"] != "POST":
            return _form(_safe_next(QueryParams(scope.get("query_string", b"")).get("next", "")))
        held = self._bodies.hold()
        try:
            body = await read(scope, receive, MAX_FORM, held)
            given = parse_qs(body.decode("latin-1"), max_num_fields=20)
        except (BodyError, ValueError) as error:
            return _form(PREFIX, f"the form cannot be read: {error}", 400)
        finally:
            held.release()
        wanted = _safe_next(given.get("next", [""])[0])
        token = given.get("token", [""])[0].strip()
        if not token.isascii() or not token.isprintable():
            return _form(wanted, "this is no token: it has characters that none has", 401)
        status = await self._tried(scope, token)
        if status != 204:
            return _form(wanted, _REFUSED.get(status, f"the answer was {status}"), status)
        number = secrets.token_urlsafe(32)
        self._keep(number, token)
        answer = RedirectResponse(wanted, 303)
        answer.set_cookie(
            COOKIE,
            number,
            path=PREFIX,
            httponly=True,
            samesite="strict",
            secure=scope.get("scheme") == "https",
        )
        return answer

    def _keep(self, number: str, token: str) -> None:
        self._kept[_key(number)] = _Session(token, self._clock() + SECONDS)
        while len(self._kept) > SESSIONS:
            self._kept.popitem(last=False)

    async def _tried(self, scope: Scope, token: str) -> int:
        """The status with which the gate and what is behind it answer to a token."""
        asked = {**scope, "method": "GET", "path": WHO, "raw_path": WHO.encode()}
        status = 500

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        await self._app(_with_token(asked, token), nothing, note)
        return status


_REFUSED = {
    401: "the API server does not accept this token",
    403: "who has this token may not see the map: the ClusterRole gpu-topology-reader allows it",
    503: "the API server has not judged the token: try again",
}


def _form(wanted: str, problem: str = "", status: int = 200) -> Response:
    text = page("login.html", LOGIN, signed_in=False, next=wanted, problem=problem)
    return HTMLResponse(text, status)


def _safe_next(wanted: str) -> str:
    """Where to go after signing in: a page of the map, and no address of anybody else.

    >>> _safe_next("/map/waiting?a=b"), _safe_next("//x.example/map"), _safe_next("/map\\r\\nX: y")
    ('/map/waiting?a=b', '/map', '/map')
    """
    path = wanted.partition("?")[0]
    fits = is_ours(path) and wanted.isascii() and wanted.isprintable() and path != LOGIN
    return wanted if fits and len(wanted) <= 2000 else PREFIX


def _with_token(scope: Scope, token: str) -> Scope:
    headers = [*scope["headers"], (b"authorization", f"Bearer {token}".encode("latin-1"))]
    return {**scope, "headers": headers, "gpu-topology.signed-in": True}


def _cookie(scope: Scope) -> str:
    jar = SimpleCookie()
    try:
        jar.load(Headers(scope=scope).get("cookie", "")[:8192])
    except CookieError:
        return ""
    found = jar.get(COOKIE)
    return found.value if found is not None else ""


def _key(number: str) -> bytes:
    """Under what a session is kept: a look-up of this tells nothing of the number by its time."""
    return hashlib.sha256(number.encode()).digest()
