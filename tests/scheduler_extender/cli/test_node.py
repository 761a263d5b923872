"""``gpu-topology node``: over the extender's own admin port, and a fake API server."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
import yaml

from scheduler_extender.annotations import RESUME
from scheduler_extender.cli import main
from tests.commands import asked
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import switched
from tests.scheduler_extender.serving import running


def test_it_shows_what_the_extender_knows() -> None:
    with running(switched()) as service:
        admin = f"http://127.0.0.1:{service.ports[1]}"
        done = asked(main, "node", "switched", "--admin", admin)
        assert (done.returncode, done.stderr) == (0, "")
        found = yaml.safe_load(done.stdout)
        assert found["gpus"] == 4
        assert found["summary"] in done.stdout, "written as people read it: 4 ×, not \\xD7"
        unknown = asked(main, "node", "nobody", "--admin", admin)
        assert (unknown.returncode, unknown.stdout) == (2, "")
        assert unknown.stderr == "error: the extender knows of no node nobody\n"


def test_resume_writes_the_time_to_the_node(tmp_path: Path) -> None:
    with FakeApiServer() as fake:
        fake.put("/api/v1/nodes", {"metadata": {"name": "n"}, "status": {}})
        kubeconfig = fake.write_kubeconfig(tmp_path / "kubeconfig")
        written = []
        for _ in range(2):
            done = asked(main, "node", "n", "--resume", "--kubeconfig", kubeconfig)
            assert (done.returncode, done.stdout) == (0, "n takes GPU pods again\n"), done.stderr
            found = fake.read("/api/v1/nodes/n")["metadata"]["annotations"][RESUME]
            written.append(datetime.fromisoformat(found))
        assert written[0] < written[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["../pods", "--resume"], "a node's name", id="a path"),
        pytest.param(["n", "--resume", "--kubeconfig", "nope"], "nope", id="kubeconfig"),
        pytest.param(["n", "--resume"], "--kubeconfig", id="in no cluster"),
        pytest.param(["n", "--admin", "http://127.0.0.1:1"], "port-forward", id="nobody there"),
        pytest.param(["n", "--admin", "nonsense"], "--admin", id="no URL"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: list[str], said: str) -> None:
    done = asked(main, "node", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_resume_of_a_node_that_is_not_there(tmp_path: Path) -> None:
    with FakeApiServer() as fake:
        kubeconfig = fake.write_kubeconfig(tmp_path / "kubeconfig")
        done = asked(main, "node", "n", "--resume", "--kubeconfig", kubeconfig)
        assert done.returncode == 2
        assert "n was not resumed" in done.stderr
