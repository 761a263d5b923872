"""Tokens and rights that the fake API server judges: TokenReview and SubjectAccessReview."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class Identities:
    """Who has which token, and who may do what to which non-resource URL.

    As with the real server, a rule's path may end in ``*``, and a review is an object that is not
    kept: it comes back with its status filled in.
    """

    def __init__(self) -> None:
        self._users: dict[str, Json] = {}
        self._rules: list[tuple[str, str, str]] = []
        self.reviewed: list[Json] = []  # every review as it was answered

    def add(self, token: str, name: str, *groups: str) -> None:
        """A token of a user."""
        self._users[token] = {"username": name, "groups": [*groups, "system:authenticated"]}

    def remove(self, token: str) -> None:
        """A token that is accepted no more."""
        del self._users[token]

    def grant(self, who: str, verb: str, path: str) -> None:
        """A user or a group may do this."""
        self._rules.append((who, verb, path))

    def review(self, resource: str, body: Json) -> Json | None:
        """The review with its answer, or None where this is none."""
        match resource:
            case "tokenreviews":
                status = self._token(body["spec"]["token"])
            case "subjectaccessreviews":
                status = {"allowed": self._allowed(body["spec"])}
            case _:
                return None
        answered = {**body, "status": status}
        self.reviewed.append(answered)
        return answered

    def _token(self, token: str) -> Json:
        user = self._users.get(token)
        if user is None:
            return {"user": {}, "error": "[invalid bearer token, token lookup failed]"}
        return {"authenticated": True, "user": user, "audiences": ["https://fake.invalid"]}

    def _allowed(self, spec: Json) -> bool:
        asked = spec["nonResourceAttributes"]
        whose = {spec["user"], *spec.get("groups", [])}
        return any(
            who in whose
            and verb == asked["verb"]
            and (path == asked["path"] or (path[-1] == "*" and asked["path"].startswith(path[:-1])))
            for who, verb, path in self._rules
        )
