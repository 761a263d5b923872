"""NVIDIA's device plugin as a child process that chooses devices, line by line.

The program is ``plugin/choices``: the plugin's own code (its version stands in ``plugin/go.mod``)
without a driver and without sockets. It serves shared GPUs and MIG instances.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.differential.managers import ManagersFailed, programs
from tests.waiting import PATIENCE

SOURCES = Path(__file__).parent / "plugin"
VERSION = "v0.19.3"
"""As in ``plugin/go.mod``."""


def plugin_program() -> Path:
    """The program, built if need be (minutes, once). Raises ManagersUnavailable."""
    return programs(SOURCES, {"choices": "1"}) / "choices"


class NvidiaPlugin:
    """The plugin of one node at a time, while the context is open."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(
            [str(self._program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._child.communicate(timeout=PATIENCE)

    def begin(
        self, units: Iterable[tuple[str, str]], strategy: str, replicas: int, *, fails_many: bool
    ) -> None:
        """Begin a new node, of which each unit has an id and the plugin's index of it.

        A unit is a GPU, or a MIG instance: then its index has a colon. ``strategy`` is ``none``,
        ``time-slicing`` or ``mps``; ``fails_many`` is the option failRequestsGreaterThanOne.
        """
        listed = [{"id": uuid, "index": index} for uuid, index in units]
        self._ask(units=listed, strategy=strategy, replicas=replicas, failsMany=fails_many)

    def preferred(
        self, available: Sequence[str], required: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """The answer to ``GetPreferredAllocation``."""
        found = self._ask(available=available, required=required, size=size)
        return tuple(found["ids"])

    def refuses(self, ids: Sequence[str]) -> bool:
        """Whether ``Allocate`` refuses to hand out these devices at once."""
        return bool(self._ask(requesting=ids).get("refused"))

    def _ask(self, **asked: Any) -> dict[str, Any]:
        child = self._child
        assert child.stdin is not None and child.stdout is not None  # noqa: PT018
        child.stdin.write(json.dumps(asked) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        if not line:
            raise ManagersFailed(f"the plugin ended over {asked}")
        found: dict[str, Any] = json.loads(line)
        if found.get("error"):
            raise ManagersFailed(f"{found['error']}, over {asked}")
        return found
