"""``make sbom``: the packages of each image as a CycloneDX bill of materials.

It lists the packages in the image's lock for its Python on Linux, each with the hashes of its
files, of which pip takes one. It leaves out what the base image brings (Python, Debian's packages):
whoever builds the image has tools that read it there.

https://cyclonedx.org/specification/overview/
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Locked:
    """A package of a lock: the SHA-256 of each of its files, as hexadecimal digits."""

    name: str
    version: str
    sha256: tuple[str, ...]


def image_python(dockerfile: str) -> str:
    """The version of Python of the image, such as 3.12. Raises :class:`ValueError`."""
    found = re.search(r"^ARG PYTHON=python:(\d+\.\d+)", dockerfile, re.MULTILINE)
    if found is None:
        raise ValueError("Dockerfile: no line ARG PYTHON=python:VERSION")
    return found[1]


def locked(text: str, python: str) -> Iterator[Locked]:
    """The packages of a lock that an image with this Python gets, in the lock's order."""
    image = {
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "python_version": python,
        "python_full_version": f"{python}.0",
    }
    for entry in re.split(r"\n(?=[A-Za-z0-9])", text):
        wanted = Requirement(entry.partition("\\\n")[0])
        if wanted.marker is None or wanted.marker.evaluate(image):
            (version,) = (each.version for each in wanted.specifier)
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
            yield Locked(wanted.name, version, hashes)


# The images' names, by those of their locks.
IMAGES = {"extender": "gpu-topology", "agent": "gpu-topology-agent"}


def bill(name: str, packages: list[Locked], version: str, made: datetime) -> str:
    """The bill of materials of an image in a version, as CycloneDX 1.6 in JSON.

    The same packages give the same serial number.
    """
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, repr((name, version, packages))))
    bom.metadata.timestamp = made
    image = Component(type=ComponentType.CONTAINER, name=name, version=version, bom_ref="image")
    bom.metadata.component = image
    for package in packages:
        url = PackageURL("pypi", None, package.name, package.version)
        # Any of the hashes may be the installed file's, so they belong to the source of the
        # package.
        files = ExternalReference(
            type=ExternalReferenceType.DISTRIBUTION,
            url=XsUri(url.to_string()),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in package.sha256],
        )
        bom.components.add(
            Component(
                type=ComponentType.LIBRARY,
                name=package.name,
                version=package.version,
                purl=url,
                bom_ref=url.to_string(),
                external_references=[files],
            )
        )
    bom.register_dependency(image, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def dated() -> datetime:
    """The date of the bills: SOURCE_DATE_EPOCH if that is set, else now. Raises
    :class:`ValueError`."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if not seconds:
        return datetime.now(UTC)
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError) as error:
        allowed = "allowed are seconds since 1970, such as 1700000000"
        raise ValueError(f"SOURCE_DATE_EPOCH: {allowed}, not {seconds[:60]!r}") from error


def written(lock: str, root: Path = ROOT) -> str:
    """The bill of materials of an image of this checkout. Raises :class:`ValueError`."""
    python = image_python((root / "Dockerfile").read_text())
    packages = list(locked((root / "requirements" / f"{lock}.txt").read_text(), python))
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return bill(IMAGES[lock], packages, project["version"], dated())


def main() -> int:
    """Write them where ``--output`` says; 1 if they cannot be written."""
    parser = argparse.ArgumentParser(description="Write the images' bills of materials.")
    parser.add_argument("--output", type=Path, required=True, help="the folder")
    folder = parser.parse_args().output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for lock in IMAGES:
            path = folder / f"{lock}.cdx.json"
            path.write_text(f"{written(lock)}\n")
            sys.stdout.write(f"{path}\n")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
