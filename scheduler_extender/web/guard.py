"""What a browser may do with the map's pages, and for whom it may ask.

The pages may load nothing but our own style sheet and script, and may be in nobody's frame. A page
of somebody else must not use the browser of a person who may see the map: so a POST that such a
page sends is refused. What a browser says in ``Host`` and ``Origin`` has been looked at before, for
all paths (:mod:`scheduler_extender.http.browsers`).
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_extender.http.bothports import send_error

PREFIX = "/map"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """ASGI middleware for the paths of the map; other paths pass it untouched, but for a browser
    that asks for ``/``: it is sent to the map."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 403; add our headers to the answer."""
        if scope["type"] != "http" or not is_ours(scope["path"]):
            to_the_map = RedirectResponse(PREFIX, 307) if _is_at_the_door(scope) else None
            await (to_the_map or self._app)(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        problem = self._problem(scope)
        if problem:
            await send_error(with_headers, 403, problem)
        else:
            await self._app(scope, receive, with_headers)

    def _problem(self, scope: Scope) -> str:
        if scope["method"] == "POST":
            site = Headers(scope=scope).get("sec-fetch-site", "same-origin")
            if site not in ("same-origin", "none"):
                return "this form was sent by a page of another site"
        return ""


def _is_at_the_door(scope: Scope) -> bool:
    """Whether this is a browser that was given no path."""
    if scope["type"] != "http" or scope["path"] != "/" or scope["method"] not in ("GET", "HEAD"):
        return False
    return "text/html" in Headers(scope=scope).get("accept", "")


def is_ours(path: str) -> bool:
    """Whether a path is one of the map's."""
    return path == PREFIX or path.startswith(PREFIX + "/")
