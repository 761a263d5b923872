"""The gate before the admin port: a client needs a bearer token that the API server accepts, and
the right to get the path.

It judges as kube-rbac-proxy and the kubelet do: TokenReview, then SubjectAccessReview on the path
as a non-resource URL. Answers are remembered for some seconds. Nobody gets in without the API
server's word, whatever fails.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

import anyio
import anyio.to_thread
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler_extender.http.bothports import CLOSE, send_error
from scheduler_extender.http.strangers import Lack, Strangers
from scheduler_extender.kube.reviews import Reviews, User
from scheduler_extender.ratelimit import RateLimit
from topology.kubeapi.apiserver import ApiError, ApiFailure

PROBES = frozenset({"/healthz", "/readyz"})  # open to everybody: the kubelet shows no token
METRICS = "/metrics"

# Seconds for which an answer of the API server holds, good or bad. So a token or a right that is
# taken away is good for so long.
REMEMBERED_SECONDS = 10.0
REMEMBERED = 1024  # tokens, and rights of users to paths
# Requests that ask the API server at one time, and that wait for their turn; over it 503. So many
# of tokens that were let in before, and as many of others.
REVIEW_THREADS = 4
REVIEWS_WAITING = 16
# Requests a second, and at once, about which the API server is asked: whoever sends guessed tokens
# costs it no more than that. Tokens that were let in before are counted apart, and wait apart, so
# that their owners are kept out neither by guesses nor by the tokens that every pod has.
REVIEW_RATE, REVIEW_BURST = 10.0, 40
LET_IN_SECONDS = 3600.0  # seconds for which a token counts as let in before
MAX_TOKEN = 16 * 1024  # characters; a service account's token has about a thousand

_Value = TypeVar("_Value")


class Remembered(Generic[_Value]):
    """The latest answers, each for some seconds. One thread at a time.

    >>> kept = Remembered[bool](seconds=10, most=1)
    >>> kept.put("a", True, now=0); kept.get("a", now=9), kept.get("a", now=10)
    ((True,), None)
    >>> kept.put("a", True, now=0); kept.put("b", False, now=0); kept.get("a", now=0)
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[float, _Value]] = OrderedDict()

    def get(self, key: Hashable, now: float) -> tuple[_Value] | None:
        """The answer in a tuple, or None where there is none any more."""
        kept = self._kept.get(key)
        if kept is None or now >= kept[0]:
            return None
        return (kept[1],)

    def put(self, key: Hashable, value: _Value, now: float) -> None:
        """Remember an answer that was given at ``now``."""
        self._kept[key] = (now + self._seconds, value)
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


class _Refused(Exception):  # noqa: N818 (an answer, no fault)
    def __init__(self, status: int, lack: Lack, message: str, told: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.lack = lack
        self.told = told or message


class Gate:
    """ASGI middleware. ``reviews`` is None without an API server: then nobody is let in.

    ``open_paths`` are open to everybody, as :data:`PROBES` always are. ``serves`` says whether we
    have such a path: every account has a right to ``/api/*``, which must not let it in. Event loop
    only.
    """

    def __init__(
        self,
        app: ASGIApp,
        reviews: Reviews | None,
        strangers: Strangers,
        serves: Callable[[Scope], bool],
        open_paths: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._reviews = reviews
        self._strangers = strangers
        self._serves = serves
        self._open = PROBES.union(open_paths)
        self._clock = clock
        self._users = Remembered[User | None](REMEMBERED_SECONDS, REMEMBERED)
        self._rights = Remembered[bool](REMEMBERED_SECONDS, REMEMBERED)
        self._let_in = Remembered[bool](LET_IN_SECONDS, REMEMBERED)
        self._rates = [RateLimit(0.0, REVIEW_RATE, REVIEW_BURST) for _ in range(2)]
        self._threads = [anyio.CapacityLimiter(REVIEW_THREADS) for _ in range(2)]
        self._asking = [0, 0]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 401, 403 or 503."""
        if scope["type"] == "http" and scope["path"] not in self._open:
            try:
                await self._judge(scope)
            except _Refused as refused:
                client = (scope.get("client") or ("",))[0]
                self._strangers.note(refused.lack, refused.told, client)
                more = [(b"www-authenticate", b"Bearer")] if refused.status == 401 else []
                await send_error(send, refused.status, str(refused), CLOSE, *more)
                return
        await self._app(scope, receive, send)

    async def _judge(self, scope: Scope) -> None:
        """Return where the request may pass. Raises :class:`_Refused`."""
        if self._reviews is None:
            raise _Refused(
                503,
                Lack.JUDGE,
                "with --cluster there is no API server that could judge a token: this port can be "
                "read on loopback addresses only",
            )
        token = _token(scope)
        # The path is judged as routes see it: decoded.
        verb, path = scope["method"].lower(), scope["path"]
        key = hashlib.sha256(token.encode()).digest()
        now = self._clock()
        known = self._users.get(key, now)
        if known is not None and known[0] is None:
            raise _unknown()
        if known is not None:
            allowed = self._rights.get((known[0], verb, path), now)
            if allowed is not None:
                self._check(known[0], verb, path, allowed[0])
                return
        kind = int(self._let_in.get(key, now) is not None)
        self._check_load(kind)
        # It is counted here, since it waits for a thread only after the loop has gone on.
        self._asking[kind] += 1
        try:
            user, right = await self._ask(token, known[0] if known else None, verb, path, kind)
        finally:
            self._asking[kind] -= 1
        now = self._clock()
        self._users.put(key, user, now)
        if user is None:
            raise _unknown()
        if right and self._serves(scope):
            self._let_in.put(key, True, now)
        self._rights.put((user, verb, path), right, now)
        self._check(user, verb, path, right)

    def _check(self, user: User | None, verb: str, path: str, right: bool) -> None:
        if user is None or not right:
            who = user.name if user else ""
            said = f"{who} may not {verb} {path}: a ClusterRole with nonResourceURLs allows it"
            raise _Refused(403, Lack.RIGHT, said)

    def _check_load(self, kind: int) -> None:
        """Raises :class:`_Refused` if the API server is asked about too many tokens of this kind.
        Kind 1 are tokens that were let in before."""
        full = self._asking[kind] >= REVIEW_THREADS + REVIEWS_WAITING
        if full or not self._rates[kind].allows("", self._clock()):
            raise _Refused(503, Lack.JUDGE, "too many tokens are being judged, try again")

    async def _ask(
        self, token: str, user: User | None, verb: str, path: str, kind: int
    ) -> tuple[User | None, bool]:
        reviews = self._reviews
        assert reviews is not None  # noqa: S101 (for the type)

        def review() -> tuple[User | None, bool]:
            owner = user or reviews.user_of(token)
            return owner, owner is not None and reviews.may(owner, verb, path)

        try:
            return await anyio.to_thread.run_sync(review, limiter=self._threads[kind])
        except ApiFailure as error:
            word = f"{error.status} {error.reason}" if isinstance(error, ApiError) else "no answer"
            raise _Refused(
                503, Lack.JUDGE, f"the API server has not judged the token: {word}", str(error)
            ) from error


def _token(scope: Scope) -> str:
    """The request's bearer token (RFC 6750). Raises :class:`_Refused`."""
    given: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
    header = given[0].decode("latin-1").strip() if len(given) == 1 else ""
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise _Refused(401, Lack.TOKEN, "a bearer token is needed: Authorization: Bearer TOKEN")
    if len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable():
        raise _unknown()
    return token


def _unknown() -> _Refused:
    return _Refused(401, Lack.TOKEN, "the API server does not accept this token")
