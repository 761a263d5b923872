"""What a test does where a program cannot be built."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from tests.differential.managers import REQUIRE, ManagersUnavailable


@contextmanager
def building() -> Iterator[None]:
    """Inside, a program is built; where it cannot be, it is :func:`missing`."""
    try:
        yield
    except ManagersUnavailable as reason:
        missing(str(reason))


def missing(reason: str) -> NoReturn:
    """Skip the test; fail where :data:`.REQUIRE` is set."""
    if os.environ.get(REQUIRE, "") not in ("", "0", "false"):
        pytest.fail(f"{reason}; {REQUIRE} is set")
    pytest.skip(reason)
