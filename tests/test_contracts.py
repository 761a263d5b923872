"""The import contracts hold for modules that they do not list."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import FOREVER

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
PACKAGES = ("topology", "scheduler_extender", "benchmarks")

NEW = [
    ("topology/new.py", "", "Inside topology, too"),
    ("topology/new.py", "import os", "The core does no I/O"),
    ("topology/machines/new.py", "from pathlib import Path", "The core does no I/O"),
    ("topology/sources/new.py", "import topology.agent.model.devicepolicy", "Inside topology, too"),
    ("topology/new.py", "import scheduler_extender.verbs", "Dependency points down"),
    ("topology/agent/new.py", "", "Inside the agent"),
    ("topology/agent/model/new.py", "import time", "The agent's model does no I/O"),
    (
        "topology/emulation/new.py",
        "import topology.core.possiblestates",
        "The emulation knows nothing",
    ),
    ("topology/core/allocators/new.py", "import topology.emulation", "Inside topology, too"),
    ("topology/core/admission/new.py", "", "Inside admission"),
    ("topology/core/placement/new.py", "", "Inside placement"),
    ("topology/codec/new.py", "", "Inside the codec"),
    (
        "scheduler_extender/new.py",
        "import topology.agent.model.devicepolicy",
        "The agent is for the agent's",
    ),
    ("scheduler_extender/state/new.py", "", "Inside the extender's state"),
    ("scheduler_extender/explain/new.py", "", "Inside the explanations"),
    (
        "scheduler_extender/state/node/new.py",
        "import scheduler_extender.state.answers.decision",
        "Inside the extender's state",
    ),
    ("scheduler_extender/state/cluster/new.py", "import time", "The extender's state does no I/O"),
    ("scheduler_extender/demo/new.py", "import grpc", "The agent is for the agent's"),
    ("scheduler_extender/new.py", "import topology.emulation", "No decision uses the emulation"),
    ("scheduler_extender/new.py", "import benchmarks.output", "Dependency points down"),
    ("scheduler_extender/new.py", "import tests.nodes", "What ships knows nothing of the tests"),
    ("benchmarks/new.py", "def late():\n    import tests.nodes", "Only one benchmark knows"),
    ("benchmarks/simulation/new.py", "import tests.fakes.kubelet", "Only one benchmark knows"),
    ("benchmarks/new.py", "import topology.agent.model.devicepolicy", "Only one benchmark knows"),
    ("benchmarks/papers/new.py", "import benchmarks.simulation.jobs", "The papers' model knows"),
    ("benchmarks/simulation/new.py", "import benchmarks.papers.model", "Inside the benchmarks"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the contracts speak of."""
    folder = tmp_path_factory.mktemp("copy")
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def broken(folder: Path) -> dict[str, str]:
    """The contracts that do not hold in a copy, and what is said of each."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(program), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
        timeout=FOREVER,
    )
    names = re.findall(r"^(.+) BROKEN", done.stdout, re.MULTILINE)
    assert bool(names) == bool(done.returncode), done.stdout + done.stderr
    parts = re.split(r"^(.+)\n-+\n", done.stdout, flags=re.MULTILINE)
    verdicts = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: verdicts[name] for name in names}


def test_they_hold(copy: Path) -> None:
    assert broken(copy) == {}


@pytest.fixture(scope="module")
def verdicts(copy: Path) -> Iterator[dict[str, str]]:
    """What is said once every module of :data:`NEW` is there, each by a name of its own."""
    new = [(copy / path).with_name(f"{name_of(row)}.py") for row, (path, _, _) in enumerate(NEW)]
    for module, (_, text, _) in zip(new, NEW, strict=True):
        module.write_text(f"{text}\n")
    yield broken(copy)
    for module in new:
        module.unlink()


def name_of(row: int) -> str:
    return f"new_{chr(ord('a') + row // 26)}{chr(ord('a') + row % 26)}"


@pytest.mark.parametrize("row", range(len(NEW)), ids=[f"{path}: {text}" for path, text, _ in NEW])
def test_a_module_that_is_new_is_under_them(verdicts: dict[str, str], row: int) -> None:
    contract = NEW[row][2]
    assert any(
        name.startswith(contract) and name_of(row) in found for name, found in verdicts.items()
    ), verdicts
