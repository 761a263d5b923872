"""``gpu-topology simulate`` and ``report``, of a checkout and of a wheel."""

import sys
from pathlib import Path

import pytest

from scheduler_extender.cli import main
from tests.commands import asked, refused


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package ``benchmarks``, as in an installation of the wheel."""
    loaded = [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]
    for name in {"benchmarks", "benchmarks.commands.simulate", *loaded}:
        monkeypatch.setitem(sys.modules, name, None)


def test_a_checkout_has_them(tmp_path: Path) -> None:
    figures, page = tmp_path / "figures.json", tmp_path / "report.html"
    done = asked(main, "simulate", "--count", "5", "--seeds", "1", "--json", figures)
    assert done.returncode == 0, done.stderr
    done = asked(main, "report", figures, "--out", page)
    assert done.returncode == 0, done.stderr
    assert page.exists()


def test_a_checkout_after_make_run_names_the_command_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith(("benchmarks.", "scipy."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    refused(asked(main, "simulate"), "simulate and report need a checkout", "run make dev there")


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("command", ["simulate", "report"])
def test_a_wheel_says_where_they_are(command: str) -> None:
    done = asked(main, command, "--cluster", "now.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("error: simulate and report need a checkout of the source: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("wheel")
def test_a_wheel_does_not_list_them() -> None:
    listed = asked(main, "--help").stdout
    assert "  demo " in listed
    assert "  simulate " not in listed
    assert "No such command 'nods'. Did you mean 'nodes'" in asked(main, "nods").stderr
