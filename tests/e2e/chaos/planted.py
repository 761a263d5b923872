"""The extender with a bug planted in it: ``python -m tests.e2e.chaos.planted extender …``.

``GPU_TOPOLOGY_PLANTED`` names the bug. The product is changed in this process only, before it
starts. The checker has to find what follows (``tests/e2e/chaos/test_planted_bugs.py``).
"""

import os
from collections.abc import Callable

from scheduler_extender.cli import main
from scheduler_extender.kube.binder import KubeBinder
from scheduler_extender.leader.fence import Fence
from scheduler_extender.state.node.ledger import _Entries, _Held
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import Binding
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest

VARIABLE = "GPU_TOPOLOGY_PLANTED"
WRAPPER = ("-m", "tests.e2e.chaos.planted")


def no_fence() -> None:
    """A bind names no version of the pod, and who takes over changes no pods."""

    def write(self: KubeBinder, binding: Binding) -> None:
        self._create(binding)

    def take_over(
        self: Fence, term: int, lasts: Callable[[], bool], *, drained: bool, former_for: float = 0.0
    ) -> int:
        self._mark(f"{term} {self._identity}", lasts)
        return 0

    KubeBinder.write = write  # type: ignore[method-assign]
    Fence.take_over = take_over  # type: ignore[method-assign]


def lost_bind() -> None:
    """A pod that no report shows yet does not count."""

    def enter(self: _Entries, pod: PodRecord, request: GpuRequest) -> None:
        """Forget it."""

    _Entries._enter_not_shown = enter  # type: ignore[method-assign]


def double_release() -> None:
    """The devices of a pod that has ended are released a second time when another pod has them,
    and that pod's entry goes with them."""
    enter = _Entries.enter
    released: dict[str, PodUid] = {}

    def entered(self: _Entries, pod: PodRecord, shown: _Held | None) -> None:
        devices = shown.devices if shown is not None else []
        again = {d for d in devices if released.get(d, pod.uid) != pod.uid}
        if pod.ended:
            released.update((d, pod.uid) for d in devices if d not in released)
        if again and not pod.ended:
            self.taken -= again
        else:
            enter(self, pod, shown)

    _Entries.enter = entered  # type: ignore[method-assign]


BUGS = {bug.__name__.replace("_", "-"): bug for bug in (no_fence, lost_bind, double_release)}

if __name__ == "__main__":
    BUGS[os.environ[VARIABLE]]()
    main()
