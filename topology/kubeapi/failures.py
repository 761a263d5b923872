"""The reasons why the API server cannot be reached, as text for people.

The libraries' own messages name their classes instead. A failed credential plugin of a kubeconfig
(``users[].user.exec``) has no message at all. The ``kubernetes`` package runs the plugin. If that
fails, it logs the reason to the root logger and continues without credentials. So the API server
answers 401, and the reason is missing. :func:`heard` takes the reason out of the log, and
:func:`reason_text` words it with names that the reader can look up.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_POOL = re.compile(r"^\w+\(host='[^']*', port=\w+\): ")
_ABSENT = re.compile(r"Expected object with name (.*) in .*/(\w+)s list")
_PREFIX = re.compile(r"^Invalid kube-config(?: file)?\. ")
NO_POD = "Service host/port is not set."  # the message of the `kubernetes` package outside a pod
MODULE = "kube_config"  # the module of the package that runs plugins
MOST = 400  # characters of a plugin's message
_ERRNO = re.compile(r"\[Errno \d+\] ([^:]+)(: .*)?")
_ENDED = re.compile(r"exec: process returned (-?\d+)\.? ?(.*)", re.DOTALL)


def unreachable_text(asked: str, error: BaseException) -> str:
    """Return why the request ``asked`` got no answer.

    >>> unreachable_text("GET /version: https://10.0.0.1:6443", OSError(111, "Connection refused"))
    'GET /version: https://10.0.0.1:6443: Connection refused'
    """
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return f"{asked}: {cause.strerror}"
    return f"{asked}: {_POOL.sub('', str(error))}"


def misconfigured_text(error: BaseException) -> str:
    """Return why a kubeconfig or a service account cannot be used.

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


class _Hears(logging.Filter):
    """A filter that takes the package's errors of one thread out of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        ours = record.thread == self._thread and record.module == MODULE
        if ours and record.levelno >= logging.ERROR:
            self.said.append(record.getMessage())
            return False
        return True


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect the errors that the package logs in this thread inside the block.

    They do not reach the log.
    """
    hears, root, quiet = _Hears(), logging.getLogger(), logging.NullHandler()
    root.addFilter(hears)
    root.addHandler(quiet)  # without any handler, logging adds one that stays
    try:
        yield hears.said
    finally:
        root.removeHandler(quiet)
        root.removeFilter(hears)


def plugin_text(path: str, context: str | None) -> str:
    """Return the beginning of an error message about a credential plugin.

    It names the kubeconfig, the command, and the user whose credentials the command supplies.
    Raises any exception that a bad file causes.
    """
    from kubernetes.config.kube_config import KubeConfigMerger

    merger: Callable[[str], Any] = KubeConfigMerger
    found = _bare(merger(path).config)
    name = context or found.get("current-context")
    chosen = _named(found, "contexts", name).get("context") or {}
    user = chosen.get("user")
    plugin = (_named(found, "users", user).get("user") or {}).get("exec") or {}
    hint = " ".join(str(plugin.get("installHint") or "").split())
    command = plugin.get("command")
    told = f"kubeconfig {path}: the command {command} gives no credentials for the user {user}"
    return f"{told} (to install it: {hint[:MOST]})" if hint else told


def _bare(node: Any) -> Any:
    """Return what the package has read, as plain mappings and lists."""
    value = getattr(node, "value", node)
    if isinstance(value, dict):
        return {key: _bare(each) for key, each in value.items()}
    return [_bare(each) for each in value] if isinstance(value, list) else value


def _named(found: Any, kind: str, name: object) -> dict[str, Any]:
    return next((each for each in found.get(kind) or () if each.get("name") == name), {})


def reason_text(heard: Sequence[str]) -> str:
    """Return why a plugin gave no credentials, from the package's messages.

    >>> reason_text(["[Errno 2] No such file or directory: 'aws'"])
    'it cannot be started: No such file or directory'
    >>> reason_text(["exec: process returned 1. no session"])
    'it ended with exit code 1 and said: no session'
    >>> reason_text(["exec: plugin api version a does not match b"])
    'plugin api version a does not match b'
    """
    said = heard[0]
    failed = _ERRNO.fullmatch(said)
    if failed:
        return f"it cannot be started: {failed[1]}"
    ended = _ENDED.fullmatch(said)
    if ended:
        words = " ".join(ended[2].split())[:MOST]
        return f"it ended with exit code {ended[1]}" + (f" and said: {words}" if words else "")
    return " ".join(said.removeprefix("exec: ").split())[:MOST]
