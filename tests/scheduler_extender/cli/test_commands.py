"""A command loads what it needs, and no more."""

from __future__ import annotations

import json
import sys
from subprocess import PIPE

import pytest

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
