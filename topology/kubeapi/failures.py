"""Why the API server cannot be asked, in words for people: what the libraries say of it names their
own classes and numbers."""

from __future__ import annotations

import re

_POOL = re.compile(r"^\w+\(host='[^']*', port=\w+\): ")
_ABSENT = re.compile(r"Expected object with name (.*) in .*/(\w+)s list")
_PREFIX = re.compile(r"^Invalid kube-config(?: file)?\. ")
NO_POD = "Service host/port is not set."
"""What the ``kubernetes`` package says outside a pod."""


def unreachable_text(asked: str, error: BaseException) -> str:
    """What was ``asked`` of which address, and why no answer came.

    >>> unreachable_text("GET /version: https://10.0.0.1:6443", OSError(111, "Connection refused"))
    'GET /version: https://10.0.0.1:6443: Connection refused'
    """
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return f"{asked}: {cause.strerror}"
    return f"{asked}: {_POOL.sub('', str(error))}"


def misconfigured_text(error: BaseException) -> str:
    """Why a kubeconfig or a service account cannot be used.

    >>> misconfigured_text(ValueError(
    ...     "Invalid kube-config file. Expected object with name dev in a/config/contexts list"))
    "it has no context 'dev'"
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    if text == NO_POD:
        return "there is none outside a pod"
    absent = _ABSENT.search(text)
    return f"it has no {absent[2]} {absent[1]!r}" if absent else _PREFIX.sub("", text)
