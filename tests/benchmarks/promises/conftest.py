"""Bugs that are planted."""

from collections.abc import Iterator

import pytest

from topology.core.memo import forget


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Plants a bug in a process that remembers no answer from before it, and keeps none of it."""
    forget()
    yield monkeypatch
    forget()
