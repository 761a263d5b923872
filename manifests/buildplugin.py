"""``make plugin ADDRESS=https://…``: the kubectl plugin as one archive for this platform, and its
manifest for krew.

The address is the folder from which users will download the archive. It has no default: only
whoever publishes a release knows it, and krew would ask a wrong one.

The program is a PEX, a zip file that Python runs: our package and those of
``requirements/plugin.txt``, taken from the environment in which this runs. ``make`` has installed
this checkout there. Some packages are compiled, so the program is for one platform and one minor
version of Python, which must be on the PATH.

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
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from requirements.sizes import locked_requirements

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "plugin.txt"
PROGRAM = "kubectl-gpu_topology"
NAME = "gpu-topology"
EXAMPLE = "https://files.example.com/gpu-topology"
FOR_EVER = 1800  # seconds after which a program is given up
# Go's names, which krew uses, by those of `uname -m`.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class PluginError(Exception):
    """The plugin cannot be built here; the message is one line."""


def build_program(path: Path) -> None:
    """Write the program. Raises :class:`PluginError`."""
    environment = Path(sys.prefix)
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.txt"
        pins.write_text("\n".join(map(str, locked_requirements(LOCK.read_text()))))
        _run(
            [
                *(sys.executable, "-m", "pex", "--venv-repository", str(environment)),
                *("--no-transitive", "--requirement", str(pins), NAME),
                *("--console-script", PROGRAM, "--output-file", str(path)),
                *("--python-shebang", "/usr/bin/env python3", "--disable-cache"),
            ]
        )


def archive(program: Path) -> bytes:
    """The program and our licence as a tar.gz; equal programs give equal archives."""
    files = ((ROOT / "LICENSE", 0o644), (program, 0o755))
    packed = tarred((path.name, mode, path.read_bytes()) for path, mode in files)
    return gzip.compress(packed, compresslevel=1, mtime=0)  # the zip is packed already


def tarred(files: Iterable[tuple[str, int, bytes]], mtime: int = 0) -> bytes:
    """Files as a tar, in this order: the name, the mode and the content of each. All have one
    time, in seconds since 1970."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, mode, content in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), mode, mtime
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def manifest(version: str, address: str, digest: str) -> dict[str, Any]:
    """What krew needs to know: the archive's address and its SHA-256 in hexadecimal digits.

    The homepage is the folder of the archive: whoever publishes it has named no other place, and
    the project has none of its own.
    """
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
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
                "whether they keep what it asked for, and where GPUs are free. It reads nodes, "
                "pods and GPUTopology objects with your own rights."
            ),
            "caveats": (
                f"Python {python} has to be on the PATH. To complete words with the Tab key, call "
                "this once: kubectl gpu-topology completion"
            ),
            "platforms": [one],
        },
    }


def folder_address(text: str) -> str:
    """An address of a folder without a slash at its end, as ``argparse`` takes it: the manifest
    names the archive below it, and users of a release download it from there.

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


def _run(command: list[str]) -> None:
    done = subprocess.run(  # noqa: S603 (our own words)
        command, capture_output=True, text=True, check=False, timeout=FOR_EVER
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no word why"]
        raise PluginError(f"{re.sub(r'.*/', '', command[0])} {command[2]}: {last[0]}")


def main() -> int:
    """Write archive and manifest where ``--output`` says; 1 if they cannot be built."""
    parser = argparse.ArgumentParser(description="Build the kubectl plugin for this platform.")
    parser.add_argument("--output", type=Path, required=True, help="the folder")
    parser.add_argument(
        "--address",
        required=True,
        type=folder_address,
        help="the folder that the archive will be downloaded from, as an https URL",
    )
    given = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    try:
        return _build(given.output, given.address, project["version"])
    except PluginError as error:
        sys.stderr.write(f"error: {error}\n")
    except OSError as error:
        sys.stderr.write(f"error: --output: {error.filename or given.output}: {error.strerror}\n")
    return 1


def _build(output: Path, address: str, version: str) -> int:
    output.mkdir(parents=True, exist_ok=True)
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    name = f"{PROGRAM}-{_system()}-{_architecture()}-{python}.tar.gz"
    build_program(output / PROGRAM)
    packed = archive(output / PROGRAM)
    (output / name).write_bytes(packed)
    said = manifest(version, f"{address}/{name}", hashlib.sha256(packed).hexdigest())
    (output / f"{NAME}.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    sys.stdout.write(f"{output / name}\n{output / f'{NAME}.yaml'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
