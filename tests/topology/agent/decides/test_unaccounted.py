"""Use of a GPU that no pod holds: tables of looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from topology.agent.decides.observed import Vitals
from topology.agent.decides.unaccounted import LOOKS, USED_MEMORY, UnaccountedUse
from topology.core.devices import Bytes, GpuUuid

GPU = GpuUuid("GPU-0")
BUSY: dict[str, Any] = {"processes": ((4711, 1),)}
IDLE: dict[str, Any] = {"processes": ()}


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        pytest.param([(BUSY, False, False)] * (LOOKS - 1), False, id="a moment"),
        pytest.param([(BUSY, False, False)] * LOOKS, True, id="long enough"),
        pytest.param([(BUSY, True, False)] * LOOKS, False, id="by a pod"),
        pytest.param([(BUSY, False, True)] * LOOKS, False, id="while a pod comes or goes"),
        pytest.param(
            [(BUSY, False, False), (BUSY, False, True), *[(BUSY, False, False)] * (LOOKS - 1)],
            True, id="a pod that comes or goes ends no count",
        ),
        pytest.param(
            [*[(BUSY, False, False)] * (LOOKS - 1), (IDLE, False, False), (BUSY, False, False)],
            False, id="not in a row",
        ),
        pytest.param(
            [*[(BUSY, False, False)] * LOOKS, (BUSY, True, False)], False, id="until a pod has it"
        ),
        pytest.param(
            [({"memory_used": Bytes(USED_MEMORY + 1)}, False, False)] * LOOKS, True,
            id="memory tells where processes cannot be seen",
        ),
        pytest.param(
            [({"memory_used": Bytes(USED_MEMORY)}, False, False)] * LOOKS, False,
            id="the driver's own memory is no use",
        ),
    ],
)  # fmt: skip
def test_use_by_no_pod(looks: Sequence[tuple[dict[str, Any], bool, bool]], said: bool) -> None:
    use = UnaccountedUse()
    for facts, held, news_due in looks:
        use.look([Vitals(GPU, **facts)], {GPU} if held else set(), news_due=news_due)
    assert (GPU in use.gpus()) is said


def test_it_is_counted_anew_after_it_was_forgotten() -> None:
    use = UnaccountedUse()
    for _ in range(LOOKS):
        use.look([Vitals(GPU, **BUSY)], (), news_due=False)
    use.forget()
    use.look([Vitals(GPU, **BUSY)], (), news_due=False)
    assert use.gpus() == frozenset()
