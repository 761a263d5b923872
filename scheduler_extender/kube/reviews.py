"""The API server's word about a bearer token: whose it is, and what that user may do.

TokenReview and SubjectAccessReview (authentication.k8s.io/v1 and authorization.k8s.io/v1). Each is
one request; nothing is remembered here.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from topology.kubeapi.apiserver import ApiServer, ApiUnreachable

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
RIGHTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
REVIEW_TIMEOUT = 3.0  # seconds for one of the two requests


@dataclass(frozen=True, slots=True)
class User:
    """A user as the API server knows it; ``extra`` are further facts that authorizers may use."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class _UserInfo(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _UserInfo = msgspec.field(default_factory=_UserInfo)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


_Review = TypeVar("_Review", _TokenReview, _AccessReview)


class Reviews:
    """Asks an API server about tokens and rights.

    Both methods raise :class:`topology.kubeapi.apiserver.ApiFailure` where it does not answer, or
    where we may not ask.
    """

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    def user_of(self, token: str) -> User | None:
        """Whose token this is, or None if the API server does not accept it."""
        status = self._post(TOKENS, {"token": token}, "TokenReview", _TokenReview).status
        user = status.user
        if not status.authenticated or not user.username:
            return None
        extra = tuple(sorted((key, tuple(values)) for key, values in user.extra.items()))
        return User(user.username, user.uid, tuple(user.groups), extra)

    def may(self, user: User, verb: str, path: str) -> bool:
        """Whether a user may do this to a non-resource URL; ``verb`` is ``get``, ``post`` …"""
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": user.groups,
            "extra": dict(user.extra),
            "nonResourceAttributes": {"verb": verb, "path": path},
        }
        status = self._post(RIGHTS, spec, "SubjectAccessReview", _AccessReview).status
        return status.allowed and not status.denied

    def _post(self, path: str, spec: dict[str, Any], kind: str, answer: type[_Review]) -> _Review:
        group = path.split("/")[2]
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        raw = self._api.create(path, msgspec.json.encode(body), timeout=REVIEW_TIMEOUT)
        try:
            return msgspec.json.decode(raw, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:  # then nobody has judged
            raise ApiUnreachable(f"POST {path}: the answer is no {kind}: {error}") from error
