"""Work is counted in calls of Python's functions, which every machine counts alike."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


def calls(work: Callable[[], object], of: CodeType | None = None) -> int:
    """How many functions are called meanwhile; or how often the one of this code is."""
    found = 0

    def note(frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal found
        found += event == "call" and of in (None, frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found
