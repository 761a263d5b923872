"""How much is placed on two-socket nodes with static managers, beside an oracle: a short play."""

import pytest

from tests.differential.managers import programs
from tests.differential.requiring import building
from tests.differential.sockets import compare

pytestmark = pytest.mark.long

PODS = 80
# Of the oracle's placements. Ties fall at random in the real programs.
PART = 0.75


@pytest.mark.parametrize("policy", ["single-numa-node", "best-effort"])
def test_two_sockets_are_used(policy: str) -> None:
    with building():
        programs()
    ours, best = compare(policy, "container", seed=1, count=PODS)
    assert best.required > PODS / 4
    assert ours.required >= PART * best.required
    assert ours.broken == 0
    assert ours.refused <= PODS / 40  # a pod without GPUs may take CPUs that nobody told us of
