"""NVIDIA's device plugin as child processes that answer line by line.

The programs of ``plugin/`` are the plugin's own code (its version stands in ``plugin/go.mod``)
without sockets: ``choices`` chooses among shared GPUs and MIG instances without a driver,
``enumeration`` says which devices the plugin would serve on a machine that NVML shows it.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.differential.managers import ManagersFailed, ManagersUnavailable, go_build, programs
from tests.waiting import PATIENCE

SOURCES = Path(__file__).parent / "plugin"
MODULE = "github.com/NVIDIA/k8s-device-plugin"
VERSION = "v0.19.3"  # as in `plugin/go.mod`


_VERSION = re.compile(r"^VERSION \?= (v\S+)", re.MULTILINE)


def plugin_program(name: str = "choices") -> Path:
    """A program, built if need be (minutes, once). Raises ManagersUnavailable."""
    return programs(SOURCES, {"choices": "1", "enumeration": "1"}) / name


def version_of(checkout: Path) -> str:
    """The release that a checkout of NVIDIA's repository is of, or is to become."""
    found = _VERSION.search((checkout / "versions.mk").read_text())
    if found is None:
        raise ManagersUnavailable(f"{checkout}/versions.mk names no version")
    return found[1]


def program_of(checkout: Path, folder: Path, name: str = "choices") -> Path:
    """A program with the plugin of a checkout in place of the module, built into ``folder``.

    For releases that the module proxy does not have. Raises ManagersUnavailable.
    """
    module = folder / "plugin.mod"
    shutil.copy(SOURCES / "go.sum", folder / "plugin.sum")
    replacing = f"\nreplace {MODULE} => {checkout.resolve()}\n"
    module.write_text((SOURCES / "go.mod").read_text() + replacing)
    go_build(SOURCES, name, folder / name, "1", "-mod=mod", f"-modfile={module}")
    return folder / name


class Answering:
    """A program that answers each line of JSON with one, while the context is open."""

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._environment = environment

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._child.communicate(timeout=PATIENCE)

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a line. Raises ManagersFailed where the program has ended."""
        child = self._child
        assert child.stdin is not None and child.stdout is not None  # noqa: PT018
        child.stdin.write(json.dumps(asked) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        if not line:
            raise ManagersFailed(f"the plugin ended over {asked}")
        found: dict[str, Any] = json.loads(line)
        return found


class NvidiaPlugin(Answering):
    """The plugin of one node at a time, choosing devices."""

    def __init__(self, program: Path) -> None:
        super().__init__(str(program))

    def begin(
        self,
        units: Iterable[tuple[str, str]],
        strategy: str,
        replicas: int,
        *,
        fails_many: bool,
        policy: str = "",
    ) -> None:
        """Begin a new node, of which each unit has an id and the plugin's index of it.

        A unit is a GPU, or a MIG instance: then its index has a colon. ``strategy`` is ``none``,
        ``time-slicing`` or ``mps``; ``fails_many`` is the option failRequestsGreaterThanOne.
        ``policy`` is that of the plugin for shared devices; empty where its release has none.
        """
        self._ask(
            units=[{"id": uuid, "index": index} for uuid, index in units],
            strategy=strategy,
            replicas=replicas,
            failsMany=fails_many,
            policy=policy,
        )

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
        found = self.answer(asked)
        if found.get("error"):
            raise ManagersFailed(f"{found['error']}, over {asked}")
        return found


@dataclass(frozen=True, slots=True)
class Served:
    """A device as the plugin serves it; ``index`` is the driver's number of its GPU, and, after a
    colon, the number of a MIG device on it. ``numa`` are the NUMA nodes that the kubelet hears."""

    id: str
    index: str
    memory: int
    numa: tuple[int, ...]


class NvidiaEnumeration(Answering):
    """The plugin, finding devices on the machine that the environment's NVML shows."""

    def serves(self, configuration: Mapping[str, Any]) -> dict[str, tuple[Served, ...]] | str:
        """The devices of each resource, or why the plugin does not start."""
        found = self.answer(configuration)
        if found.get("error"):
            return str(found["error"])
        return {
            name: tuple(Served(d["id"], d["index"], d["memory"], tuple(d["numa"])) for d in devices)
            for name, devices in found["resources"].items()
        }
