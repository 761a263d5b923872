"""The Go programs of the end-to-end tests, built once from pinned modules.

Each set is built into a folder of ``.cache`` at the top of the checkout that is named after its
sources, so that a set whose sources change is built anew and nothing else is.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.programs import fetching

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache"
KUBERNETES = HERE / "controlplane"
KUBERNETES_137 = HERE / "controlplane137"
NVIDIA = HERE / "nvidia"
ASSETS = "/usr/local/kubebuilder/bin"
PLUGIN, FEATURE_DISCOVERY = "nvidia-device-plugin", "gpu-feature-discovery"
_PLUGIN_MODULE = "github.com/NVIDIA/k8s-device-plugin"


class ProgramsUnavailable(Exception):  # noqa: N818 (it is not a fault)
    """The programs cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class ProgramSet:
    """Programs that are built together.

    ``module`` is the folder of their ``go.mod``; ``programs`` are their names, ``packages`` what
    each is built from. ``stamp`` are the linker's flags for the version that they show. ``cgo``
    says that they need a C compiler. ``replaceable`` lets a folder named by ``KUBEBUILDER_ASSETS``
    stand in.
    """

    module: Path
    programs: tuple[str, ...]
    packages: tuple[str, ...]
    stamp: str
    cgo: bool = False
    replaceable: bool = False

    @property
    def text(self) -> str:
        """What it is, for people."""
        return ", ".join(self.programs)

    def folder(self) -> Path:
        """The folder with all programs of the set, building them if need be (minutes, once).

        Raises :class:`ProgramsUnavailable` where Go, its modules or a C compiler cannot be had.
        """
        if self.replaceable:
            assets = Path(os.environ.get("KUBEBUILDER_ASSETS", ASSETS))
            if self._complete(assets):
                return assets
        # The last part keeps the folders of sets apart that share a go.mod.
        folder = CACHE / self.module.relative_to(HERE) / self._digest()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._complete(folder):
                self._build(folder)
        return folder

    def _complete(self, folder: Path) -> bool:
        return all(os.access(folder / name, os.X_OK) for name in self.programs)

    def _digest(self) -> str:
        own = (path for name in self.programs for path in self.module.glob(f"{name}/*.go"))
        sources = [path.read_bytes() for path in sorted([*self.module.glob("go.*"), *own])]
        return hashlib.sha256(b"".join([*sources, *map(str.encode, self.programs)])).hexdigest()[
            :16
        ]

    def _build(self, folder: Path) -> None:
        names = self.text
        go = _go(names)
        if self.cgo and shutil.which("cc") is None:
            raise ProgramsUnavailable(f"there is no C compiler (cc) to build {names} with")
        print(f"building {names} (once, some minutes) …", file=sys.stderr)
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        started = time.monotonic()
        # Without -buildvcs=false the build fails where git distrusts the owner of the checkout.
        flags = ("-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {self.stamp}")
        done = fetching(
            [go, "build", *flags, "-o", f"{fresh}/", *self.packages],
            self.module,
            {**os.environ, "CGO_ENABLED": f"{self.cgo:d}", "GOFLAGS": "-mod=readonly"},
        )
        if done.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            raise ProgramsUnavailable(f"go build failed: {done.stderr[-2000:]}")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
        print(f"built in {time.monotonic() - started:.0f} s", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Source:
    """A Go module of which only the files are wanted: its path, version and checksum (``h1:…``)."""

    path: str
    version: str
    checksum: str

    @property
    def text(self) -> str:
        """What it is, for people."""
        return f"{self.path} {self.version}"

    def folder(self) -> Path:
        """The folder of its files, which is had once. Raises :class:`ProgramsUnavailable`."""
        go = _go(self.path)
        command = [go, "mod", "download", "-json", f"{self.path}@{self.version}"]
        done = fetching(command, HERE)
        found = json.loads(done.stdout) if done.stdout else {}
        if done.returncode != 0 or "Dir" not in found:
            why = found.get("Error") or done.stderr
            raise ProgramsUnavailable(f"{self.text} cannot be had: {why[-2000:]}")
        if found["Sum"] != self.checksum:
            raise ValueError(f"{self.text} has the checksum {found['Sum']}")
        return Path(found["Dir"])


# For its schemas.
CERT_MANAGER = Source(
    "github.com/cert-manager/cert-manager",
    "v1.21.2",
    "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
)


def _go(wanted: str) -> str:
    """The go command. Raises :class:`ProgramsUnavailable`."""
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise ProgramsUnavailable(f"Go is not installed, and there is no {wanted}")
    return go


def _kubernetes(module: Path, *programs: str) -> ProgramSet:
    """Programs of the Kubernetes release that the module's ``go.mod`` pins."""
    required = (module / "go.mod").read_text()
    release = re.search(r"k8s\.io/kubernetes (v1\.(\d+)\.\d+)", required)
    assert release is not None
    version = "k8s.io/component-base/version"
    stamp = (
        f"-X {version}.gitVersion={release[1]} -X {version}.gitMajor=1 "
        f"-X {version}.gitMinor={release[2]}"
    )
    packages = tuple(f"./{name}" for name in programs)
    return ProgramSet(module, programs, packages, stamp, replaceable=module == KUBERNETES)


CONTROL_PLANE = _kubernetes(
    KUBERNETES, "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
)
NODE = _kubernetes(KUBERNETES, "kubelet", "cri")  # what a node runs besides NVIDIA's programs
# The release in which gang scheduling is beta.
GANGS = _kubernetes(KUBERNETES_137, "kube-apiserver", "kube-scheduler")
# What Dynamic Resource Allocation needs besides.
DRA = _kubernetes(KUBERNETES_137, "dra-driver", "kube-controller-manager", "kubelet")
KUEUE = ProgramSet(HERE / "kueue", ("kueue",), ("sigs.k8s.io/kueue/cmd/kueue",), "")
# For its manifests.
KUEUE_SOURCE = Source(
    "sigs.k8s.io/kueue", "v0.14.0", "h1:lDR34L42/k17opLfkZbZ+taymLaPpryj3ZBbvKqs/N4="
)

_HELM = "helm.sh/helm/v3"
HELM = ProgramSet(
    HERE / "helm",
    ("helm",),
    (f"{_HELM}/cmd/helm",),
    # Which Kubernetes it takes to be there when it is not asked about a cluster.
    f"-X {_HELM}/pkg/chartutil.k8sVersionMajor=1 -X {_HELM}/pkg/chartutil.k8sVersionMinor=36",
)
ACTIONLINT = ProgramSet(
    HERE / "actionlint",
    ("actionlint",),
    ("github.com/rhysd/actionlint/cmd/actionlint",),
    "",
)
KREW = ProgramSet(HERE / "krew", ("krew",), ("sigs.k8s.io/krew/cmd/krew",), "")


def plugin_versions() -> Sequence[str]:
    """The versions of NVIDIA's device plugin that can be built, oldest first."""
    found = [path.parent.name for path in NVIDIA.glob("v*/go.mod")]
    return sorted(found, key=lambda version: [int(part) for part in version[1:].split(".")])


NEWEST = plugin_versions()[-1]


def nvidia(version: str) -> ProgramSet:
    """NVIDIA's device plugin of a version, with its gpu-feature-discovery where that can be had.

    Which of them a version has is what its ``go.mod`` lists as tools.
    """
    required = (NVIDIA / version / "go.mod").read_text()
    tools = re.findall(rf"^\s*(?:tool )?({_PLUGIN_MODULE}/cmd/\S+)$", required, re.MULTILINE)
    names = tuple(tool.rpartition("/")[2] for tool in tools)
    stamp = f"-X {_PLUGIN_MODULE}/internal/info.version={version}"
    return ProgramSet(NVIDIA / version, names, tuple(tools), stamp, cgo=True)
