"""Kubernetes' own managers as a child process that answers line by line."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.programs import fetching
from tests.waiting import PATIENCE

SOURCES = Path(__file__).parent / "kubelet"
LATEST = Path(__file__).parents[1] / "e2e" / "controlplane137"
CACHE = Path(__file__).parents[2] / ".cache" / "differential"
# Where this is set, as in CI, a machine on which the program cannot be built is a failure.
REQUIRE = "GPU_TOPOLOGY_REQUIRE_DIFFERENTIAL"
MEMORY_FOLDER = Path("/dev/shm")
# By name, whether cgo is needed: without it the managers share the e2e kubelet's build cache.
PROGRAMS = {"managers": "0", "allocator": "1", "structured": "0"}
# Static managers leave a goroutine behind for each node, so the process is renewed.
NODES_OF_ONE_PROCESS = 2000

Json = dict[str, Any]


class ManagersUnavailable(Exception):  # noqa: N818 (it is not a fault)
    """The program cannot be built here; the message says why."""


class ManagersFailed(Exception):  # noqa: N818
    """The program ended, or said that what it was asked makes no sense."""


def programs(
    of: Path = SOURCES, names: Mapping[str, str] = PROGRAMS, releases: Path | None = None
) -> Path:
    """The folder with the programs of a Go module, built if need be (minutes, once).

    ``releases`` is a folder with another ``go.mod`` that names what they are built with. Raises
    :class:`ManagersUnavailable`.
    """
    sources = sorted([*of.glob("*/*.go"), *(releases or of).glob("go.*")])
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]
    folder = CACHE / digest
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(os.access(folder / name, os.X_OK) for name in names):
            _build(folder, of, names, releases)
    return folder


def allocators() -> Mapping[str, Path]:
    """kube-scheduler's allocator, by Kubernetes' release. Raises :class:`ManagersUnavailable`."""
    latest = programs(names={"structured": "0"}, releases=LATEST)
    return {"1.36": programs() / "structured", "1.37": latest / "structured"}


def go_build(of: Path, name: str, into: Path, cgo: str, *flags: str) -> None:
    """Build one program of a Go module. Raises :class:`ManagersUnavailable`."""
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise ManagersUnavailable("Go is not installed")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        raise ManagersUnavailable("there is no C compiler, and NVIDIA's code binds to NVML")
    # Without -buildvcs=false the build fails where git distrusts the owner of the checkout.
    usual = ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w")
    done = fetching(
        [go, "build", *usual, *flags, "-o", str(into), f"./{name}"],
        of,
        {**os.environ, "CGO_ENABLED": cgo, "GOFLAGS": ""},
    )
    if done.returncode != 0:
        raise ManagersUnavailable(f"go build failed: {done.stderr[-2000:]}")


def _build(folder: Path, of: Path, names: Mapping[str, str], releases: Path | None) -> None:
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    module = f"-modfile={(releases or of).resolve() / 'go.mod'}"
    try:
        for name, cgo in names.items():
            go_build(of, name, fresh / name, cgo, "-mod=readonly", module)
    except ManagersUnavailable:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


class Managers:
    """The managers of one node at a time, while the context is open."""

    def __init__(self, folder: Path) -> None:
        self._command = [str(folder / "managers"), str(folder / "allocator")]
        self._child: subprocess.Popen[str] | None = None
        self._nodes = 0
        place = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
        self._folder = tempfile.TemporaryDirectory(prefix="managers-", dir=place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def begin(self, node: Mapping[str, Any]) -> None:
        """Begin a new node; the former one is forgotten."""
        if self._nodes % NODES_OF_ONE_PROCESS == 0:
            self._end()
        self._nodes += 1
        folder = Path(self._folder.name)
        for old in folder.iterdir():
            shutil.rmtree(old)
        place = folder / str(self._nodes)
        place.mkdir()
        self.ask(do="node", node=node, folder=str(place))

    def ask(self, **command: Any) -> Json:
        """The answer to one command; see ``kubelet/protocol.go``. Raises ManagersFailed."""
        child = self._running()
        assert child.stdin is not None and child.stdout is not None  # noqa: PT018
        try:
            child.stdin.write(json.dumps(command) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._end()
            raise ManagersFailed(f"the program ended over {command.get('do')}")
        found: Json = json.loads(line)
        if found.get("error"):
            raise ManagersFailed(str(found["error"]))
        return found

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        return self._child

    def _end(self) -> None:
        if self._child is not None:
            assert self._child.stdin is not None and self._child.stdout is not None  # noqa: PT018
            self._child.stdin.close()
            self._child.wait(PATIENCE)
            self._child.stdout.close()
            self._child = None
