"""A check's finding: its state, what was seen, the remedy, and a page with more."""

from enum import Enum
from functools import partial

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


ok = partial(Finding, State.OK)
warn = partial(Finding, State.WARN)  # it works but needs attention
fail = partial(Finding, State.FAIL)  # it does not work, or will break a promise
unseen = partial(Finding, State.UNSEEN)
