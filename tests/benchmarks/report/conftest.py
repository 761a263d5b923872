"""A sweep that is played once for all tests of the report."""

from typing import Any

import pytest

from tests.benchmarks.report.pages import played, tiny


@pytest.fixture(scope="session")
def whole() -> dict[str, Any]:
    return played(tiny())
