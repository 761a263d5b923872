"""A node whose kubelet answers as a test says."""

import pytest

from tests.scheduler_extender.state.answers.refusals import World


@pytest.fixture
def world() -> World:
    return World()
