"""What a check says: a state, what was seen, what to do, and the page that says more."""

from __future__ import annotations

from enum import Enum

from scheduler_extender.explain import Struct


class State(Enum):
    """How it stands. What was not seen is neither well nor bad."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNSEEN = "not seen"


class Finding(Struct, frozen=True):
    """One thing that a check has to say. ``page`` is a file of the project, with its heading."""

    state: State
    text: str
    remedy: str = ""
    page: str = ""


def ok(text: str) -> Finding:
    """It is as it should be."""
    return Finding(State.OK, text)


def warn(text: str, remedy: str, page: str) -> Finding:
    """It works, and somebody should look at it."""
    return Finding(State.WARN, text, remedy, page)


def fail(text: str, remedy: str, page: str) -> Finding:
    """It does not work, or will break a promise."""
    return Finding(State.FAIL, text, remedy, page)


def unseen(text: str, remedy: str = "", page: str = "") -> Finding:
    """It could not be looked at."""
    return Finding(State.UNSEEN, text, remedy, page)
