"""A check's finding: its state, what was seen, the remedy, and a page with more."""

from __future__ import annotations

from enum import Enum

from scheduler_extender.explain import Struct


class State(Enum):
    """The state of a finding. A thing that was not seen is neither good nor bad."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNSEEN = "not seen"


class Finding(Struct, frozen=True):
    """One result of a check. ``page`` is a page of the project, with its heading."""

    state: State
    text: str
    remedy: str = ""
    page: str = ""


def ok(text: str) -> Finding:
    """Return a finding that something is as it should be."""
    return Finding(State.OK, text)


def warn(text: str, remedy: str, page: str) -> Finding:
    """Return a finding that something works but needs attention."""
    return Finding(State.WARN, text, remedy, page)


def fail(text: str, remedy: str, page: str) -> Finding:
    """Return a finding that something does not work, or will break a promise."""
    return Finding(State.FAIL, text, remedy, page)


def unseen(text: str, remedy: str = "", page: str = "") -> Finding:
    """Return a finding that something could not be checked."""
    return Finding(State.UNSEEN, text, remedy, page)
