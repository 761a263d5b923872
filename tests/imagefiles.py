"""The Dockerfile without Docker: its files and packages, and nothing else, in a folder.

A stage becomes a folder with what the COPY lines copy and a virtual environment with what the RUN
lines install. Locked packages are not fetched again: each is linked in from the environment that
the tests run in, which comes from the same lock. Our own package is built and installed by pip, as
the image does it. A line that is not understood raises :class:`UnknownStepError`.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.waiting import FOREVER

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())


class UnknownStepError(ValueError):
    """A line of the Dockerfile that the replay does not know."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its name, the stage or image it begins with, and its steps."""

    name: str
    parent: str
    steps: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class Image:
    """A built stage: ``root`` stands for the container's /, ``python`` runs its packages."""

    root: Path
    environment: Path
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        """The interpreter of the image."""
        return self.environment / "bin" / "python"

    def run(
        self, command: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] = {}
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the image's working folder, with the image's programs alone."""
        program = self.environment / "bin" / command[0]
        return subprocess.run(
            [str(program), *command[1:]],
            cwd=cwd or self.root / self.workdir.lstrip("/"),
            env={"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(self.root), **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=FOREVER,
        )


def stages(text: str) -> dict[str, Stage]:
    """The stages of a Dockerfile by name, in order."""
    found: dict[str, Stage] = {}
    given = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, _, rest = line.strip().partition(" ")
        if word == "ARG" and not found:
            continue
        if word == "FROM":
            parent, _, name = re.split(r"(?i)\s+(as)\s+", rest)
            parent = re.sub(r"\$\{(\w+)\}", lambda name: given[name[1]], parent)
            found[name] = Stage(name, parent)
            last = found[name]
        else:
            last.steps.append((word, rest.strip()))
    return found


def build(stage: str, folder: Path) -> Image:
    """The image of a stage, in an empty folder."""
    known = stages((ROOT / "Dockerfile").read_text())
    image = Image(folder / "root", folder / "environment")
    image.root.mkdir(parents=True)
    venv.create(image.environment, symlinks=True)
    _link(image, "pip")  # it comes with the python image
    chain: list[Stage] = []
    name = stage
    while name in known:
        chain.insert(0, known[name])
        name = known[name].parent
    for each in chain:
        replay(image, each)
    return image


def replay(image: Image, stage: Stage) -> None:
    """Do what a stage does to an image. Raises :class:`UnknownStepError`."""
    image.entrypoint = ()
    for word, rest in stage.steps:
        _step(image, word, rest)


def _step(image: Image, word: str, rest: str) -> None:
    here = image.root / image.workdir.lstrip("/")
    match word:
        case "WORKDIR":
            image.workdir = rest
            (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "COPY" if rest.startswith("--from="):
            which, source, target = rest.split()
            other = build(which.removeprefix("--from="), image.root.with_name("from"))
            _copy(other.root / source.lstrip("/"), here / target, many=target.endswith("/"))
        case "COPY":
            *sources, target = rest.split()
            for source in sources:
                _copy(ROOT / source, here / target, many=target.endswith("/"))
        case "RUN":
            for command in rest.split("&&"):
                _install(image, shlex.split(command), here)
        case "ENTRYPOINT":
            image.entrypoint = tuple(json.loads(rest))
        case "USER":
            pass
        case _:
            raise UnknownStepError(f"{word} {rest}")


def _copy(source: Path, target: Path, *, many: bool) -> None:
    if source.is_dir():
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, symlinks=True, ignore=unwanted, dirs_exist_ok=True)
    else:
        place = target / source.name if many or target.is_dir() else target
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)


def _install(image: Image, words: list[str], here: Path) -> None:
    flags = ["-q", "--no-index", "--disable-pip-version-check", "--no-cache-dir"]
    rest = [w for w in words if w not in ("--no-cache-dir", "--require-hashes")]
    match rest:
        case ["pip", "install", "-r", requirements]:
            for name in locked(here / requirements):
                _link(image, name)
        case ["pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", _, "."]:
            _pip(image, ["wheel", *flags, *rest[2:]])
        case ["pip", "install", "--no-deps", "--no-index", pattern]:
            wheels = [str(path) for path in here.glob(pattern)]  # as the shell would
            _pip(image, ["install", *flags, "--no-deps", *wheels])
        case _:
            raise UnknownStepError(shlex.join(words))


def _pip(image: Image, words: list[str]) -> None:
    done = image.run(["python", "-m", "pip", *words])
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def locked(path: Path) -> Iterator[str]:
    """The packages of a lock that belong on this machine. Raises where another version is here."""
    for line in path.read_text().splitlines():
        if not re.match(r"[A-Za-z0-9]", line):
            continue
        wanted = Requirement(line.rstrip("\\ "))
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            here = distribution(wanted.name).version
        except PackageNotFoundError:
            here = "nothing"
        if here not in wanted.specifier:
            raise RuntimeError(f"{wanted} is locked, {here} is installed: run 'make test'")
        yield wanted.name


def _link(image: Image, name: str) -> None:
    """Make an installed package visible in the image's environment."""
    found = distribution(name)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = image.environment / "lib" / version / "site-packages"
    for part in sorted(_parts(found)):
        _link_path(Path(str(found.locate_file(""))) / part, target / part)


def _parts(found: Distribution) -> set[str]:
    """What of site-packages belongs to a package: folders and files at the top."""
    return {
        file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")
    }


def _link_path(source: Path, target: Path) -> None:
    """A link to a package's folder; a folder that several packages share is made anew."""
    shared = source.is_dir() and not any(source.glob("__init__.*")) and "-info" not in source.name
    if not shared:
        if not target.exists():
            target.symlink_to(os.path.realpath(source), target_is_directory=source.is_dir())
        return
    target.mkdir(exist_ok=True)
    for part in source.iterdir():
        if part.name != "__pycache__":
            _link_path(part, target / part.name)
