"""A command loads what it needs, and no more."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from importlib.metadata import packages_distributions
from subprocess import PIPE

import pytest
from packaging.utils import canonicalize_name

from scheduler_extender.cli.commands import APP, OF, PLACES, PLUGIN
from scheduler_extender.cli.lazygroup import first_sentence
from tests.commands import ROOT
from tests.programs import started

CLUSTER = ("--cluster", "examples/clusters/where.yaml")
LOADED = """
import json, sys
sys.argv = ["gpu-topology", *sys.argv[1:]]
from scheduler_extender.cli import main
try:
    main()
except SystemExit:
    print(json.dumps(sorted(sys.modules)))
"""
WITHOUT = """
import json, sys
hidden, commands = json.loads(sys.argv[1]), sys.argv[2:]
class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hiding)
from scheduler_extender.cli import main
for command in commands:
    sys.argv = ["gpu-topology", command, "--help"]
    try:
        main()
    except SystemExit as end:
        print(command, "ends with", end.code)
"""
# What bash asks when somebody presses TAB behind "gpu-topology w".
COMPLETES_W = {
    "_GPU_TOPOLOGY_COMPLETE": "complete_bash",
    "COMP_WORDS": "gpu-topology w",
    "COMP_CWORD": "1",
}
# Servers, and clients of the API server and the kubelet.
OTHERS = {"fastapi", "starlette", "uvicorn", "uvloop", "kubernetes", "grpc", "networkx"}


def loaded(*words: str) -> list[str]:
    """The modules that are there when the command ends."""
    command = [sys.executable, "-c", LOADED, *words]
    with started(command, cwd=ROOT, stdout=PIPE) as child:
        printed, _ = child.communicate()
    found: list[str] = json.loads(printed.splitlines()[-1])
    return found


def test_the_version_loads_typer_and_little_else() -> None:
    modules = loaded("--version")
    assert len(modules) < 300
    ours = [name for name in modules if name.startswith(("scheduler_extender.", "topology"))]
    assert ours == [
        "scheduler_extender.cli",
        "scheduler_extender.cli.commandline",
        "scheduler_extender.cli.commands",
        "scheduler_extender.cli.interrupts",
        "scheduler_extender.cli.lazygroup",
        "scheduler_extender.harmless",
    ]


# What a model, a server or a client of one needs. typer itself loads pydantic where it reads words.
HEAVY = {*OTHERS, "numpy", "scipy", "msgspec", "rich", "structlog", "yaml", "topology"}


@pytest.mark.parametrize("words", [("--help",), ("--nonsense",), ("nonsense",), ()], ids=str)
def test_help_and_wrong_words_load_no_model(words: tuple[str, ...]) -> None:
    assert not HEAVY & set(loaded(*words))


def test_the_help_of_the_benchmarks_loads_no_model() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "benchmarks", "--help"]
    with started(command, cwd=ROOT, stdout=PIPE, stderr=PIPE) as child:
        printed, told = child.communicate()
    assert "simulate " in printed
    modules = {line.rpartition("|")[2].strip() for line in told.splitlines()}
    assert "benchmarks" in modules
    assert not HEAVY & modules


def test_a_shell_completes_a_first_word_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in COMPLETES_W.items():
        monkeypatch.setenv(name, value)
    modules = loaded()
    assert "typer._completion_classes" in modules
    assert not HEAVY & set(modules)


@pytest.mark.parametrize("name", OF[APP])
def test_the_list_of_commands_has_the_first_sentence_of_each(name: str) -> None:
    module, function = PLACES[APP][name]
    described = getattr(import_module(module), function).__doc__
    told = first_sentence(module, function)
    assert " ".join(described.split()).startswith(told)
    assert told.endswith(".")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("nodes", *CLUSTER), id="nodes"),
        pytest.param(("machines",), id="machines"),
    ],
)
def test_nobody_loads_servers_or_clients_who_needs_none(words: tuple[str, ...]) -> None:
    modules = loaded(*words)
    assert not OTHERS & set(modules)


def test_the_plugin_needs_no_package_that_its_archive_lacks() -> None:
    """As ``tests/e2e/test_krew.py`` tries with the archive itself."""
    locked = (ROOT / "requirements" / "plugin.txt").read_text()
    there = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", locked, re.MULTILINE)}
    hidden = [
        module
        for module, names in packages_distributions().items()
        if not {canonicalize_name(name) for name in names} & {*there, "gpu-topology"}
    ]
    assert "fastapi" in hidden
    commands = [command for command in OF[PLUGIN] if command in OF[APP]]
    with started(
        [sys.executable, "-c", WITHOUT, json.dumps(hidden), *commands], cwd=ROOT, stdout=PIPE
    ) as child:
        printed, _ = child.communicate()
    assert "is not installed" not in printed
    assert printed.count(" ends with 0\n") == len(commands)
