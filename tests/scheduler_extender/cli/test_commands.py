"""A command loads what it needs, and no more."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import packages_distributions
from subprocess import PIPE

import pytest
from packaging.utils import canonicalize_name

from scheduler_extender.cli.commands import APP, OF, PLUGIN
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
    ]


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
