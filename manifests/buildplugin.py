"""``make plugin ADDRESS=https://…`` builds the kubectl plugin and its manifest for krew.

The plugin is one archive for this platform. The address is the folder from which users will
download the archive. It has no default: only the publisher of a release knows it, and krew would
download from a wrong one.

The program is a PEX, a zip file that Python runs. It has our package and those of
``requirements/plugin.txt``, taken from the environment in which this script runs. ``make`` has
installed this checkout there. Some packages are compiled, so the program runs on one platform and
with one minor version of Python, which must be on the PATH. With ``--python`` it runs with all
versions that are named; pex downloads the packages for each, by the hashes of the lock.

https://docs.pex-tool.org, https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "plugin.txt"
PROGRAM = "kubectl-gpu_topology"
NAME = "gpu-topology"
EXAMPLE = "https://files.example.com/gpu-topology"
FOR_EVER = 1800  # seconds after which a program is stopped
# Go's names, which krew uses, by those of `uname -m`.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class PluginError(Exception):
    """The error that the plugin cannot be built here. The message is one line."""


def build_program(path: Path, pythons: Sequence[str] = ()) -> None:
    """Write the program, for the Python that runs this script or for all of ``pythons``.

    Each of ``pythons`` is a path, or a name on the PATH. Raises :class:`PluginError`.
    """
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.txt"
        if pythons:
            pins.write_text(f"{LOCK.read_text()}\n{_our_wheel(Path(folder))}\n")
            source = [word for python in pythons for word in ("--python", python)]
        else:
            named = [*map(str, locked_requirements(LOCK.read_text())), NAME]
            pins.write_text("\n".join(named))
            source = ["--venv-repository", str(Path(sys.prefix))]
        _run(
            [
                *(sys.executable, "-m", "pex", *source),
                *("--no-transitive", "--requirement", str(pins)),
                *("--console-script", PROGRAM, "--output-file", str(path)),
                *("--python-shebang", "/usr/bin/env python3", "--disable-cache"),
            ]
        )


def locked_requirements(text: str) -> Iterator[Requirement]:
    """Yield the packages of a lock that this machine needs."""
    for line in re.findall(r"^[A-Za-z0-9].*==.*$", text, re.MULTILINE):
        wanted = Requirement(line.rstrip("\\ "))
        if wanted.marker is None or wanted.marker.evaluate():
            yield wanted


def _our_wheel(folder: Path) -> str:
    """Build our wheel in the folder. Return its line in a list of requirements with hashes."""
    how = ("-q", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder))
    _run([sys.executable, "-m", "pip", "wheel", *how, str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{NAME} @ {wheel.as_uri()} --hash=sha256:{digest}"


def versions(pythons: Sequence[str]) -> list[str]:
    """Return the minor versions of these Pythons, such as 3.11. Raises :class:`PluginError`."""
    if not pythons:
        return [f"{sys.version_info.major}.{sys.version_info.minor}"]
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        return [_run([python, "-c", ask]).strip() for python in pythons]
    except OSError as error:
        raise PluginError(f"--python: {error.filename}: {error.strerror}") from error


def archive(program: Path) -> bytes:
    """Return the program and our licence as a tar.gz. Equal programs give equal archives."""
    files = ((ROOT / "LICENSE", 0o644), (program, 0o755))
    packed = tarred((path.name, mode, path.read_bytes()) for path, mode in files)
    return gzip.compress(packed, compresslevel=1, mtime=0)  # the zip is packed already


def tarred(files: Iterable[tuple[str, int, bytes]], mtime: int = 0) -> bytes:
    """Return files as a tar, in the order given; each is a name, a mode and a content.

    All of them get the same time, in seconds since 1970.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, mode, content in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), mode, mtime
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def manifest(
    version: str, address: str, digest: str, pythons: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the manifest for krew.

    It names the archive's address, its SHA-256 in hexadecimal digits, and the versions of Python
    that run it. The homepage is the folder of the archive: the publisher has named no other
    address, and the project has no homepage.
    """
    *others, last = pythons or versions(())
    python = f"{', '.join(others)} or {last}" if others else last
    matches = {"os": _system(), "arch": _architecture()}
    one = {
        "selector": {"matchLabels": matches},
        "uri": address,
        "sha256": digest,
        "bin": PROGRAM,
        "files": [{"from": name, "to": "."} for name in (PROGRAM, "LICENSE")],
    }
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version}",
            "homepage": address.rpartition("/")[0],
            "shortDescription": "Why GPU pods wait, and where GPUs are free",
            "description": (
                "Says why a pod waits for GPUs and what would help, which GPUs a pod got and "
                "whether they meet its request, and where GPUs are free. It reads nodes, "
                "pods and GPUTopology objects with your own rights."
            ),
            "caveats": (
                f"Python {python} must be on the PATH. For completion with the Tab key, run "
                "this once: kubectl gpu-topology completion"
            ),
            "platforms": [one],
        },
    }


def folder_address(text: str) -> str:
    """Return the address of a folder without a slash at its end; a type for ``argparse``.

    The manifest names the archive below this address, and users of a release download it from
    there.

    >>> folder_address("https://files.example.com/gpu-topology/")
    'https://files.example.com/gpu-topology'
    """
    said = f"allowed is an https URL without ? and #, such as {EXAMPLE}, not {text!r}"
    try:
        parts = urlsplit(text)
        port_is_one = parts.port is None or parts.port > 0
    except ValueError as error:
        raise argparse.ArgumentTypeError(said) from error
    plain = text.isascii() and text.isprintable() and " " not in text
    if parts.scheme != "https" or not parts.hostname or not plain or not port_is_one:
        raise argparse.ArgumentTypeError(said)
    if parts.query or parts.fragment or parts.username is not None:
        raise argparse.ArgumentTypeError(said)
    return text.rstrip("/")


def _system() -> str:
    return platform.system().lower()


def _architecture() -> str:
    machine = platform.machine()
    return ARCHITECTURES.get(machine, machine)


def _run(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603 (our own words)
        command, capture_output=True, text=True, check=False, timeout=FOR_EVER
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no error message"]
        raise PluginError(f"{re.sub(r'.*/', '', command[0])} {command[2]}: {last[0]}")
    return done.stdout


def main() -> int:
    """Write the archive and the manifest into ``--output``. Return 1 if they cannot be built."""
    parser = argparse.ArgumentParser(description="Build the kubectl plugin for this platform.")
    parser.add_argument("--output", type=Path, required=True, help="the folder")
    parser.add_argument(
        "--address",
        required=True,
        type=folder_address,
        help="the folder that the archive will be downloaded from, as an https URL",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="a Python that runs the program, by its path or name; may stand several times. "
        "Without it: the one that runs this",
    )
    given = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    try:
        return _build(given.output, given.address, project["version"], given.python)
    except PluginError as error:
        sys.stderr.write(f"error: {error}\n")
    except OSError as error:
        sys.stderr.write(f"error: --output: {error.filename or given.output}: {error.strerror}\n")
    return 1


def _build(output: Path, address: str, version: str, pythons: Sequence[str]) -> int:
    output.mkdir(parents=True, exist_ok=True)
    told = versions(pythons)
    python = "-".join(f"py{each.replace('.', '')}" for each in told)
    name = f"{PROGRAM}-{_system()}-{_architecture()}-{python}.tar.gz"
    build_program(output / PROGRAM, pythons)
    packed = archive(output / PROGRAM)
    (output / name).write_bytes(packed)
    digest = hashlib.sha256(packed).hexdigest()
    said = manifest(version, f"{address}/{name}", digest, told)
    (output / f"{NAME}.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    sys.stdout.write(f"{output / name}\n{output / f'{NAME}.yaml'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
