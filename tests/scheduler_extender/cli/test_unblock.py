"""``gpu-topology unblock``: what it says over the extender's own admin port. Evictions themselves
are tried on a real API server (``tests/e2e/test_unblock.py``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.cli import main
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.keptplace import KeptPlace
from scheduler_extender.state.pods.standing import Standing
from tests.commands import asked
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_extender.serving import Running, running
from tests.scheduler_extender.unblocking.scenes import NVLINKED, Held, cluster_of, waiting
from topology.core.devices import NodeName, PodUid
from topology.core.requests import gpu_request
from topology.machines import machine

NODE = machine("a100-pcie-4-bridged").topology("pairs")


@pytest.fixture
def service() -> Iterator[Running]:
    """A node on which one GPU of each pair is held, and a pod that wants a pair."""
    cluster = cluster_of({NODE: {"a": Held((0,)), "b": Held((2,), 5)}})
    cluster.feed.put_pod(waiting("wants", gpu_request(2, NVLINKED), Standing(priority=3)))
    with running(cluster=cluster) as found:
        yield found


def unblock(service: Running, *words: str) -> Any:
    """What the command answers."""
    return asked(main, "unblock", *words, "--admin", f"http://127.0.0.1:{service.ports[1]}")


@pytest.mark.parametrize("words", [("team/wants",), ("wants", "-n", "team")])
def test_it_says_whom_to_evict(service: Running, words: tuple[str, ...]) -> None:
    done = unblock(service, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "evict 1 pod on pairs: then team/wants has a guaranteed place there\n"
        "  team/a (priority 0, 1 GPU) moves: its ReplicaSet makes it anew, pairs has a place\n"
    )


def test_the_namespace_is_the_one_of_the_context(
    service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = {"cluster": "c", "user": "u", "namespace": "team"}
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
    }
    (path := tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert "then team/wants has a guaranteed place there" in unblock(service, "wants").stdout
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert "no pod default/wants" in unblock(service, "wants").stderr


def test_it_says_so_as_data(service: Running) -> None:
    found = json.loads(unblock(service, "team/wants", "--output=json").stdout)
    assert found["plan"]["node"] == "pairs"
    assert [step["pod"] for step in found["plan"]["steps"]] == ["a"]
    assert found["whole"]
    assert found["keptPlace"] is None


def test_who_is_not_waiting_and_who_is_unknown(service: Running) -> None:
    cluster: Cluster = service.cluster
    assert unblock(service, "team/a").stdout == "team/a is on pairs\n"
    done = unblock(service, "team/nobody")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the extender knows of no pod team/nobody with GPUs\n"
    cluster.feed.put_pod(waiting("quad", gpu_request(4, NVLINKED)))
    none = unblock(service, "team/quad")
    assert none.returncode == 1
    assert none.stdout.startswith("nobody is worth evicting for team/quad: ")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"gated": True}, "has scheduling gates"),
        ({"deleting": True}, "is being deleted"),
        ({"phase": "Failed"}, "has ended"),
    ],
)
def test_nobody_is_evicted_for_a_pod_that_is_not_scheduled(
    service: Running, state: dict[str, Any], words: str
) -> None:
    """As one that Kueue holds back: kube-scheduler does not look at it, whoever is gone."""
    cluster: Cluster = service.cluster
    pod = cluster.pod(PodUid("wants"))
    assert pod is not None
    cluster.feed.put_pod(replace(pod, **state))
    done = unblock(service, "team/wants")
    assert done.returncode == 1
    assert words in done.stdout
    assert json.loads(unblock(service, "team/wants", "--output=json").stdout)["plan"] is None


def test_without_budgets_nothing_is_planned(service: Running) -> None:
    service.cluster.budgets = None
    done = unblock(service, "team/wants")
    assert done.returncode == 1
    assert "PodDisruptionBudgets are not known" in done.stdout


def test_a_place_that_is_kept_is_told(service: Running) -> None:
    cluster = service.cluster
    kept = KeptPlace(NodeName("pairs"), cluster.today() + 60, frozenset({PodUid("a")}))
    pod = cluster.pod(PodUid("wants"))
    assert pod is not None
    cluster.feed.put_pod(replace(pod, kept_place=kept))
    found = json.loads(unblock(service, "team/wants", "--output=json").stdout)
    assert found["keptPlace"]["node"] == "pairs"
    assert found["keptPlace"]["victims"] == ["a"]
    assert found["keptPlace"]["holds"]
    cluster.feed.put_pod(replace(pod, kept_place=replace(kept, victims=frozenset())))
    found = json.loads(unblock(service, "team/wants", "--output=json").stdout)
    assert not found["keptPlace"]["holds"]


def test_nobody_is_evicted_where_the_place_cannot_be_kept(service: Running, tmp_path: Path) -> None:
    """Here the API server knows no such pod."""
    with FakeApiServer() as fake:
        kubeconfig = fake.write_kubeconfig(tmp_path / "kubeconfig")
        done = unblock(service, "team/wants", "--evict", "--kubeconfig", str(kubeconfig))
        assert done.returncode == 2
        assert "nobody was evicted: the place is not ours: 404" in done.stderr
        assert not [r for r in fake.requests if r.method == "POST"]


def test_pods_are_evicted_in_the_cluster_that_kubectl_would_ask(
    service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeApiServer() as fake:
        kubeconfig = fake.write_kubeconfig(tmp_path / "named")
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        done = unblock(service, "team/wants", "--evict")
        assert "nobody was evicted: the place is not ours: 404" in done.stderr
        monkeypatch.delenv("KUBECONFIG")
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".kube").mkdir()
        kubeconfig.rename(tmp_path / ".kube" / "config")
        asked = len(fake.requests)
        done = unblock(service, "team/wants", "--evict")
        assert "nobody was evicted: the place is not ours: 404" in done.stderr
        assert len(fake.requests) > asked
        (tmp_path / ".kube" / "config").unlink()
        done = unblock(service, "team/wants", "--evict")
        assert done.returncode == 2
        said = done.stderr.splitlines()[-1]
        assert said.startswith("error: nobody was evicted: neither $KUBECONFIG nor ~/.kube/config")


@pytest.mark.parametrize("keep", ["5", "100000"])
def test_a_place_is_kept_for_a_while(service: Running, keep: str) -> None:
    done = unblock(service, "team/wants", "--evict", "--keep", keep)
    assert done.returncode == 2
    assert "--keep: allowed are 30 to 3600 seconds" in done.stderr
