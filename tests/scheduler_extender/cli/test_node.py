"""``gpu-topology node``: over the extender's own admin port, and a fake API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from scheduler_extender.annotations import RESUME
from scheduler_extender.cli import main
from scheduler_extender.http.addresses import Addresses
from scheduler_extender.kube.reviews import Reviews
from tests.commands import asked
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import switched
from tests.scheduler_extender.serving import running
from tests.scheduler_extender.tlsfiles import TlsFiles
from topology import codec
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine

CA = trustme.CA()


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


def test_of_a_node_with_dra_it_says_in_which_order_gpus_come(tmp_path: Path) -> None:
    record: dict[str, Any] = codec.encode(machine("a100-pcie-4-bridged").topology("node"))
    record["spec"]["allocator"] = {"policy": "dra", "published": [3, 1, 0, 2]}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(record))
    done = asked(main, "node", "node", "--cluster", tmp_path / "cluster.yaml")
    assert done.stdout.splitlines()[1:3] == [
        "served by a DRA driver: kube-scheduler takes free GPUs in order 3, 1, 0, 2",
        "can still promise 1 whole node",
    ]


def test_the_memory_that_it_shows_is_what_a_pod_may_write() -> None:
    """An H100 has 79.65 GiB: who writes 80Gi gets none."""
    done = asked(main, "node", "h100-00", "-o", "wide", "--cluster", "examples/clusters/mixed.yaml")
    assert done.stdout.count(" 79Gi ") == 8


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An extender as it is installed: its admin port's URL, and the CA of its certificate."""
    files = TlsFiles(tmp_path)
    files.write(CA)
    with FakeApiServer() as fake:
        fake.identities.add("the-token-of-ada", "ada")
        fake.identities.add("the-token-of-bob", "bob")
        fake.identities.grant("ada", "get", "/v1/*")
        api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
        where = Addresses("0.0.0.0", tls=files.tls)
        with running(switched(), where=where, reviews=Reviews(api)) as service:
            assert files.tls.client_ca is not None
            yield f"https://127.0.0.1:{service.ports[1]}", files.tls.client_ca
        api.close()


@pytest.mark.parametrize("how", ["--token", "variable", "kubeconfig"])
def test_it_shows_a_token_over_tls(
    closed: tuple[str, Path], how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, ca = closed
    words: list[object] = ["node", "switched", "--admin", admin, "--admin-ca", ca]
    if how == "--token":
        words += ["--token", "the-token-of-ada"]
    elif how == "variable":
        monkeypatch.setenv("GPU_TOPOLOGY_TOKEN", "the-token-of-ada")
    else:
        user = {"users": [{"name": "u", "user": {"token": "the-token-of-ada"}}]}
        cluster = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]}
        context = {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
        path = tmp_path / "ada"
        path.write_text(yaml.safe_dump({**config, **user, **cluster, **context}))
        words += ["--kubeconfig", path]
    done = asked(main, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert yaml.safe_load(done.stdout)["gpus"] == 4


@pytest.mark.parametrize(
    ("token", "said"),
    [
        pytest.param(None, "create token gpu-topology-reader", id="none"),
        pytest.param("wrong", "create token gpu-topology-reader", id="wrong"),
        pytest.param("the-token-of-bob", "bob may not get /v1/nodes/switched", id="no right"),
    ],
)
def test_it_says_what_the_port_lacks(
    closed: tuple[str, Path], token: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPU_TOPOLOGY_TOKEN", raising=False)
    words = ["--token", token] if token else []
    done = asked(main, "node", "switched", "--admin", closed[0], "--admin-ca", closed[1], *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["node", "why", "unblock"])
def test_what_is_no_url_is_one_line(command: str) -> None:
    done = asked(main, command, "x", "--admin", "http://[", "--token", "t")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --admin: http://[: a URL is needed, as ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("token", ["secret\r", "sec\nret", "secret\u20ac"])
def test_what_is_no_token_is_refused_and_not_repeated(token: str) -> None:
    with running(switched()) as service:
        admin = f"http://127.0.0.1:{service.ports[1]}"
        done = asked(main, "node", "switched", "--admin", admin, "--token", token)
    assert done.returncode == 2
    assert done.stderr == (
        "error: --token: it has characters that no token has, such as line ends\n"
    )


def test_it_says_what_is_wrong_with_tls(closed: tuple[str, Path]) -> None:
    done = asked(main, "node", "switched", "--admin", closed[0])
    assert done.returncode == 2
    assert "give --admin-ca FILE" in done.stderr
    with running(switched()) as service:
        plain = f"https://127.0.0.1:{service.ports[1]}"
        done = asked(main, "node", "switched", "--admin", plain)
        assert done.returncode == 2
        assert f"give --admin http://127.0.0.1:{service.ports[1]}" in done.stderr


def test_a_kubeconfig_without_a_token_is_told(tmp_path: Path) -> None:
    with FakeApiServer() as fake:
        kubeconfig = fake.write_kubeconfig(tmp_path / "kubeconfig")
        admin = ("--admin", "https://127.0.0.1:1")
        done = asked(main, "node", "n", *admin, "--kubeconfig", kubeconfig)
    assert done.returncode == 2
    assert "has no token" in done.stderr


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
        pytest.param(
            ["n", "--admin", "http://192.0.2.1:1", "--token", "x"], "everybody to read", id="plain"
        ),
        pytest.param(["n", "--admin-ca", "nope"], "--admin-ca: nope", id="no CA"),
        pytest.param(["n", "--kubeconfig", "nope"], "nope", id="no kubeconfig"),
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
