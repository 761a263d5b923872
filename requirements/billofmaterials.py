"""``make sbom``: the packages of each image as a CycloneDX bill of materials.

It lists the packages in the image's lock for its Python on Linux, each with its licence, with what
it asks for, and with the hashes of its files, of which pip takes one. The first two are what the
package says that is installed here, which may be another version if this Python is another. It
leaves out what the base image brings (Python, Debian's packages): whoever builds the image has
tools that read it there.

https://cyclonedx.org/specification/overview/
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License, LicenseAcknowledgement
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def image_environment(python: str) -> dict[str, str]:
    """What the markers of requirements are about, in an image with this Python."""
    return {
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "python_version": python,
        "python_full_version": f"{python}.0",
    }


def locked(text: str, python: str) -> Iterator[Locked]:
    """The packages of a lock that an image with this Python gets, in the lock's order."""
    image = image_environment(python)
    for entry in re.split(r"\n(?=[A-Za-z0-9])", text):
        wanted = Requirement(entry.partition("\\\n")[0])
        if wanted.marker is None or wanted.marker.evaluate(image):
            (version,) = (each.version for each in wanted.specifier)
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
            yield Locked(wanted.name, version, hashes)


# The images' names, by those of their locks.
IMAGES = {"extender": "gpu-topology", "agent": "gpu-topology-agent"}


# How packages without an SPDX identifier write the licences that we have met.
LICENCES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
}


def licence(said: PackageMetadata) -> str | None:
    """The licence that a package's metadata name: an SPDX expression if they have one, and None if
    they say nothing."""
    expressions = said.get_all("License-Expression") or []
    free = [text for text in said.get_all("License") or [] if "\n" not in text]
    named = (each.partition("License :: ") for each in said.get_all("Classifier") or [])
    classified = (text.rpartition(" :: ")[2] for before, _, text in named if not before)
    told = (*expressions, *free, *classified)
    first = next(filter(None, told), None)
    return None if first is None else LICENCES.get(first, first)


def asked_for(requires: Sequence[str], python: str) -> set[str]:
    """The names of the packages that requirements name for an image with this Python, without
    those of extras.

    >>> asked_for(["A.b>=1", "c; extra == 'd'", "e; sys_platform == 'win32'"], "3.12")
    {'a-b'}
    """
    image = {**image_environment(python), "extra": ""}
    return {
        canonicalize_name(wanted.name)
        for wanted in map(Requirement, requires)
        if wanted.marker is None or wanted.marker.evaluate(image)
    }


@dataclass(frozen=True, slots=True)
class Told:
    """What a package says of itself: its licence, and the names of those that it asks for."""

    licence: str | None = None
    asks_for: frozenset[str] = frozenset()


def told(name: str, python: str) -> Told:
    """What the package says that is installed here; nothing if none is."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return Told()
    return Told(licence(found.metadata), frozenset(asked_for(found.requires or (), python)))


# Of each image: its lock, its name, and the extras of ours that it installs.
IMAGES = {"extender": "gpu-topology", "agent": "gpu-topology-agent"}
EXTRAS = {"extender": ("extender", "plugin"), "agent": ("agent",)}


@dataclass(frozen=True, slots=True)
class Bill:
    """What an image in a version consists of: the packages, what each says, and which of them our
    own package asks for."""

    name: str
    version: str
    packages: Sequence[Locked]
    told: Mapping[str, Told]
    direct: Set[str]

    def text(self, made: datetime) -> str:
        """It as CycloneDX 1.6 in JSON. Equal bills give the same serial number."""
        identity = repr((self.name, self.version, self.packages))
        bom = Bom(serial_number=uuid5(NAMESPACE_URL, identity))
        bom.metadata.timestamp = made
        image = Component(
            type=ComponentType.CONTAINER, name=self.name, version=self.version, bom_ref="image"
        )
        bom.metadata.component = image
        parts = {package.name: self._component(package) for package in self.packages}
        bom.components.update(parts.values())
        bom.register_dependency(image, [parts[name] for name in parts.keys() & self.direct])
        for name, part in parts.items():
            asks_for = self.told[name].asks_for
            bom.register_dependency(part, [parts[each] for each in parts.keys() & asks_for])
        return JsonV1Dot6(bom).output_as_string(indent=2)

    def _component(self, package: Locked) -> Component:
        url = PackageURL("pypi", None, package.name, package.version)
        # Any of the hashes may be the installed file's, so they belong to the source of the
        # package.
        files = ExternalReference(
            type=ExternalReferenceType.DISTRIBUTION,
            url=XsUri(url.to_string()),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in package.sha256],
        )
        declared = self.told[package.name].licence
        return Component(
            type=ComponentType.LIBRARY,
            name=package.name,
            version=package.version,
            purl=url,
            bom_ref=url.to_string(),
            licenses=[_license(declared)] if declared is not None else (),
            external_references=[files],
        )


def _license(text: str) -> License:
    declared = LicenseAcknowledgement.DECLARED
    return LicenseFactory().make_from_string(text, license_acknowledgement=declared)


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
    extras = [each for extra in EXTRAS[lock] for each in project["optional-dependencies"][extra]]
    bill = Bill(
        IMAGES[lock],
        project["version"],
        packages,
        {package.name: told(package.name, python) for package in packages},
        asked_for([*project["dependencies"], *extras], python),
    )
    return bill.text(dated())


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
