"""``gpu-topology map --open``: kubectl forwards a port, and a browser is started on it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from scheduler_extender.cli import main
from scheduler_extender.cli.adminport import scheme_of
from scheduler_extender.http import strangers
from tests.commands import Done, asked
from tests.nodes import pcie, switched
from tests.programs import started
from tests.scheduler_extender.serving import running
from tests.waiting import PATIENCE, eventually

KUBECTL = """#!{python}
import os, pathlib, sys, time
pathlib.Path({folder!r}, "words").write_text(" ".join(sys.argv[1:]))
pathlib.Path({folder!r}, "pid").write_text(str(os.getpid()))
{does}
"""
# Whoever sees the file sees all of it.
BROWSER = """#!/bin/sh
echo "$1" > {folder}/half
mv {folder}/half {folder}/opened
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a kubectl and a browser of ours are, the only ones there."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    browser = tmp_path / "browser"
    browser.write_text(BROWSER.format(folder=tmp_path))
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    return tmp_path


def kubectl(folder: Path, does: str) -> None:
    program = folder / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable, folder=str(folder), does=does))
    program.chmod(0o755)


def says(port: int) -> str:
    return f"print('Forwarding from 127.0.0.1:{port} -> 8889', flush=True)"


def opened(*words: str) -> Done:
    return asked(main, "map", "--open", *words)


def test_it_forwards_and_opens_until_the_port_breaks(folder: Path) -> None:
    with running(switched()) as service:
        port = service.ports[1]
        kubectl(folder, f"{says(port)}\nprint('lost connection to pod', flush=True)\nsys.exit(1)")
        done = opened("--kubeconfig", "some/config", "--context", "blue", "--system", "gpus")
    url = f"http://localhost:{port}/map"
    assert done.returncode == 2
    assert done.stderr == "error: kubectl port-forward has ended: lost connection to pod\n"
    assert f"The map is at {url} until you press Ctrl-C.\n" in done.stdout
    assert "kubectl -n gpus create token gpu-topology-reader" in done.stdout
    eventually(lambda: (folder / "opened").exists(), "the browser was started")
    assert (folder / "opened").read_text() == f"{url}\n"
    assert (folder / "words").read_text() == (
        "--kubeconfig some/config --context blue --namespace gpus port-forward "
        "--address=127.0.0.1 service/gpu-topology-admin :8889"
    )


def test_a_file_has_no_page_to_open() -> None:
    done = opened("--cluster", "examples/clusters/where.yaml")
    said = "error: --open and --cluster: allowed is one of them, a file has no extender\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_kubectl_too(folder: Path) -> None:
    kubectl(folder, f"{says(1)}\ntime.sleep(3600)")
    command = [sys.executable, "-m", "scheduler_extender", "map", "--open"]
    with started(command) as child:
        eventually(lambda: (folder / "opened").exists(), "the browser was started")
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 130
    pid = int((folder / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        pytest.param(
            "sys.exit('error: services \"gpu-topology-admin\" not found')",
            'error: --open: the port cannot be forwarded: error: services "gpu-topology-admin" '
            "not found\n",
            id="refused",
        ),
        pytest.param(
            "pass",
            "error: --open: the port cannot be forwarded: kubectl says nothing\n",
            id="silent",
        ),
    ],
)
def test_what_cannot_be_forwarded_is_one_line(folder: Path, does: str, said: str) -> None:
    kubectl(folder, does)
    done = opened()
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_without_kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    done = opened()
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no kubectl; forward the port yourself: kubectl -n" in done.stderr


def test_what_listens_without_tls_is_http() -> None:
    with running(switched()) as service:
        assert scheme_of(service.ports[1]) == "http"


@pytest.mark.parametrize("command", ["nodes", "map", "waiting"])
def test_the_extender_is_asked_over_a_forwarded_port(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It runs in this process, and logs to the same output that a first try of TLS is no HTTP.
    monkeypatch.setattr(strangers, "LOG_BURST", 0)
    with running(switched(), pcie()) as service:
        kubectl(folder, f"{says(service.ports[1])}\ntime.sleep(3600)")
        done = asked(main, command, "--forward", "-o", "name", "--system", "gpus")
    assert (done.returncode, done.stderr) == (0, "")
    names = [] if command == "waiting" else ["node/pcie", "node/switched"]
    assert done.stdout.split() == names
    assert "--namespace gpus port-forward" in (folder / "words").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


def test_one_way_to_ask_is_enough(folder: Path) -> None:
    for words in (("--admin", "http://127.0.0.1:1"), ("--cluster", "examples/clusters/why.yaml")):
        done = asked(main, "nodes", "--forward", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "allowed is one of them" in done.stderr
    kubectl(folder, "sys.exit('Error from server (Forbidden): pods is forbidden')")
    done = asked(main, "nodes", "--forward")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --forward: the port cannot be forwarded: Error from")
