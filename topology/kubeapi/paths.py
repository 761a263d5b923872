"""Paths on the API server: names of objects become parts of them, and never more than one part."""

from __future__ import annotations

from urllib.parse import quote

from topology.kubeapi.apiserver import ApiMisconfigured


def path(collection: str, *parts: str) -> str:
    """The path of something below ``collection``, its parts percent-encoded.

    Servers decode a path before they take it apart, so what would be more than one part then, or
    another directory, cannot be asked for at all: :class:`ApiMisconfigured`.

    >>> path("/api/v1/namespaces", "default", "pods", "a b")
    '/api/v1/namespaces/default/pods/a%20b'
    """
    for part in parts:
        if part in ("", ".", "..") or "/" in part or "%" in part:
            raise ApiMisconfigured(f"{part!r} cannot be a part of a path on the API server")
    return "/".join((collection, *(quote(part, safe="") for part in parts)))
