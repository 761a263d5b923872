"""How many pods a node's kubelet refuses before no more are sent there.

Twelve pods of a kind are bound to one node at once. Each play says how many its kubelet admits
before it refuses the rest, and what happened before. ``pytest -s`` prints the figures.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler_extender.verbs.bindlimiter import AT_ONCE, KNOWN_AT_ONCE
from tests.scheduler_extender.verbs.crowd import CONFIG, NODE, SINGLE, Crowd
from tests.waiting import eventually
from topology.core.devices import GpuUuid
from topology.core.graph import AllocatorConfig
from topology.core.report import Health, Report
from topology.core.requests import Exclusive, GpuRequest, gpu_request

PODS = 12
PINNED = replace(SINGLE, exclusive=Exclusive(cpus=True))
STATIC = AllocatorConfig(cpu_manager_policy="static", memory_manager_policy="None")
RESTRICTED = replace(STATIC, topology_manager_policy="restricted")
SICK = (Health(GpuUuid("GPU-15"), healthy=False, reason="Xid79"),)


def fresh(crowd: Crowd) -> None:
    """No kubelet of the node was ever heard of."""


def known(crowd: Crowd) -> None:
    """It has admitted a pod of the kind, and no change was seen since."""
    crowd.admit("before")


def known_pinned(crowd: Crowd) -> None:
    crowd.admit("before", PINNED)


def sick_since(crowd: Crowd) -> None:
    """It has admitted a pod of the kind, and then a GPU got sick."""
    crowd.admit("before")
    crowd.cluster.put_report(NODE, Report("boot", 2, health=SICK))


def other_kind(crowd: Crowd) -> None:
    crowd.admit("before", gpu_request(2))


def lost(crowd: Crowd, kind: GpuRequest, admits: int, at_once: int) -> int:
    """The refused pods of a crowd, whose kubelet answers no sooner than it must: when as many are
    bound as it lets."""
    crowd.request = kind
    answered = 0
    with crowd.bound((PODS, NODE)) as binds:

        def all_are_bound_or_refused() -> bool:
            return all(bind.done() for bind in binds)

        while not (all_are_bound_or_refused() and crowd.written.empty()):
            enough = at_once if answered <= admits else AT_ONCE
            eventually(
                lambda enough=enough: crowd.written.qsize() >= enough or all_are_bound_or_refused()  # type: ignore[misc]
            )
            if not crowd.written.empty():
                crowd.answer(refused=answered >= admits)
                answered += 1
    return answered - admits


@pytest.mark.parametrize(
    ("config", "kind", "before", "admits", "most"),
    [
        pytest.param(CONFIG, SINGLE, fresh, 0, AT_ONCE, id="refuses all from the start"),
        pytest.param(CONFIG, SINGLE, other_kind, 0, AT_ONCE, id="refuses a kind it has not seen"),
        pytest.param(CONFIG, SINGLE, sick_since, 0, AT_ONCE, id="refuses all since a GPU is sick"),
        pytest.param(STATIC, PINNED, known_pinned, 4, AT_ONCE, id="static CPUs run out"),
        pytest.param(RESTRICTED, PINNED, known_pinned, 4, AT_ONCE, id="restricted, CPUs run out"),
        pytest.param(RESTRICTED, SINGLE, known, 4, AT_ONCE, id="restricted, GPUs run out"),
        pytest.param(CONFIG, SINGLE, known, 4, KNOWN_AT_ONCE, id="refuses all of a sudden, unseen"),
    ],
)
def test_many_binds_at_once_lose_few_pods(
    config: AllocatorConfig,
    kind: GpuRequest,
    before: Callable[[Crowd], None],
    admits: int,
    most: int,
    request: pytest.FixtureRequest,
) -> None:
    crowd = Crowd(config=config)
    before(crowd)
    crowd.written.queue.clear()
    found = lost(crowd, kind, admits, most)
    print(f"\n{request.node.callspec.id}: {admits} admitted, {found} of {PODS} lost")
    assert found <= most
    assert found
