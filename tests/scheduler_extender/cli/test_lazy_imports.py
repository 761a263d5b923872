"""A command loads what it needs, and no more."""

import ast
import json
import re
import sys
from importlib.metadata import packages_distributions
from subprocess import PIPE

import pytest
from packaging.utils import canonicalize_name

from scheduler_extender.cli.commands import PLACES, PLUGIN
from tests.commands import ROOT
from tests.programs import started

CLUSTER = ("--cluster", "examples/clusters/where.yaml")
LOADED = """
import gc, json, sys
sys.argv = ["gpu-topology", *sys.argv[1:]]
from scheduler_extender.cli import main
try:
    main()
except SystemExit:
    assert not gc.get_stats()[2]["collections"], "all objects were looked through for garbage"
    print(json.dumps(sorted(sys.modules)))
"""
DECLARED = """
import json, sys
import typer
from benchmarks.__main__ import app as benchmarks
from scheduler_extender.cli.commands import app, plugin
for commands in (typer.main.get_command(each).commands for each in (app, plugin, benchmarks)):
    for name, command in commands.items():
        with command.make_context(name, [], resilient_parsing=True) as context:
            assert command.get_help(context)
print(json.dumps(sorted(sys.modules)))
"""
WITHOUT = """
import json, sys
from importlib import import_module
hidden, wanted = map(json.loads, sys.argv[1:])
class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hiding)
for name in wanted:
    import_module(name)
print("all are there")
"""
# Servers, and clients of the API server and the kubelet.
OTHERS = {"fastapi", "starlette", "uvicorn", "uvloop", "kubernetes", "grpc", "networkx"}


def loaded(*words: str, script: str = LOADED) -> list[str]:
    """The modules that are there when the command ends."""
    command = [sys.executable, "-c", script, *words]
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
        "scheduler_extender.cli.commands.examples",
        "scheduler_extender.cli.interrupts",
        "scheduler_extender.cli.lazygroup",
        "scheduler_extender.untrustedtext",
    ]


# What a model, a server or a client of one needs. typer itself loads pydantic where it reads words.
HEAVY = {*OTHERS, "numpy", "scipy", "msgspec", "rich", "structlog", "yaml", "topology.core"}


def test_the_help_of_every_command_loads_no_model() -> None:
    modules = set(loaded(script=DECLARED))
    assert {"scheduler_extender.cli.commands.cluster", "benchmarks.commands.simulate"} <= modules
    assert not HEAVY & modules


@pytest.mark.parametrize(
    "words",
    [
        *[
            (),
            ("--help",),
            ("--nonsense",),
            ("nonsense",),
            ("why", "--help"),
            ("why", "--nonsense"),
        ],
        *[("why", "pod", "-o", "nonsense"), ("waiting", "--require", "nonsense")],
        *[("nodes", "-o", "nonsense"), ("check", "-o", "nonsense"), ("node", "No_Name")],
    ],
    ids=" ".join,
)
def test_help_and_wrong_words_load_no_model(words: tuple[str, ...]) -> None:
    assert not HEAVY & set(loaded(*words))


@pytest.mark.parametrize("words", ["gpu-topology w", "gpu-topology why --"])
def test_a_shell_completes_commands_and_options_without_a_model(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What bash runs when a person presses TAB."""
    monkeypatch.setenv("_GPU_TOPOLOGY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    modules = loaded()
    assert "typer._completion_classes" in modules
    assert not HEAVY & set(modules)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("nodes", *CLUSTER), id="nodes"),
        pytest.param(("machines",), id="machines"),
        pytest.param(("why", "team-a/train", "--cluster", "examples/clusters/why.yaml"), id="why"),
    ],
)
def test_no_command_loads_servers_or_clients_without_need(words: tuple[str, ...]) -> None:
    assert not OTHERS & set(loaded(*words))


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
    files = [ROOT / f"{module.replace('.', '/')}.py" for module, _ in PLACES[PLUGIN].values()]
    every = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    wanted = {node.module for node in every if isinstance(node, ast.ImportFrom)}
    assert "scheduler_extender.cli.why" in wanted
    command = [sys.executable, "-c", WITHOUT, json.dumps(hidden), json.dumps(sorted(wanted))]
    with started(command, cwd=ROOT, stdout=PIPE) as child:
        printed, _ = child.communicate()
    assert printed == "all are there\n"
