"""A kubeconfig whose credentials a command gives that is not there: each command says so once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_extender.cli import main
from tests.commands import asked
from tests.fakes.apiserver import FakeApiServer

LINKED = "manifests/samples/pair-nvlink.yaml"


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with FakeApiServer() as fake:
        path = fake.write_kubeconfig(tmp_path / "config")
        config = json.loads(path.read_text())
        version = "client.authentication.k8s.io/v1"
        config["users"][0]["user"] = {
            "exec": {"apiVersion": version, "command": "no-such-login", "interactiveMode": "Never"}
        }
        path.write_text(json.dumps(config))
        yield path


@pytest.mark.parametrize(
    "words",
    [
        ("why", "train"),
        ("waiting",),
        ("nodes", "-o", "json"),
        ("node", "n"),
        ("node", "n", "--resume"),
        ("map",),
        ("idle", "-A"),
        ("pods", "-A"),
        ("check", LINKED),
        ("unblock", "train"),
    ],
    ids=" ".join,
)
def test_a_missing_plugin_is_one_line(
    words: tuple[str, ...], kubeconfig: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = asked(main, *words, "--kubeconfig", kubeconfig)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    for named in (str(kubeconfig), "no-such-login", "the user fake", "No such file or directory"):
        assert named in done.stderr
    assert capfd.readouterr() == ("", ""), "the client library says nothing of its own"
