"""``--forward`` and ``map --open``: kubectl forwards a port of the extender's pod."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scheduler_extender.annotations import TERM
from scheduler_extender.cli import main
from tests.commands import Done, asked, refused
from tests.fakes.apiserver import FakeApiServer
from tests.installation import SYSTEM
from tests.kubectl import STAYS, Kubectl
from tests.nodes import pcie, pod, switched
from tests.programs import free_port, started
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from tests.scheduler_extender.serving import running
from tests.waiting import PATIENCE, eventually
from topology.core.requests import gpu_request
from topology.machines import machine

# Whoever sees the file sees all of it.
BROWSER = """#!/bin/sh
echo "$1" > {folder}/half
mv {folder}/half {folder}/opened
"""
PAIRS = machine("a100-pcie-4-bridged").topology("train-07")
LABELS = {"app.kubernetes.io/name": "gpu-topology", "app.kubernetes.io/component": "extender"}


class Installed(Kubectl):
    """kubectl, and pods of the extender in ``fake``."""

    def __init__(self, folder: Path, fake: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.fake = fake
        self.kubeconfig = fake.write_kubeconfig(folder / "kubeconfig")

    def pod(self, name: str, namespace: str = SYSTEM, *, ready: bool = True, term: int = 0) -> None:
        """A pod of the extender, which last led in a term."""
        marks = {TERM: f"{term} {name} fenced"} if term else {}
        conditions = [{"type": "Ready", "status": str(ready)}]
        metadata = {"name": name, "labels": LABELS, "annotations": marks}
        pod = {"metadata": metadata, "spec": {}, "status": {"conditions": conditions}}
        self.fake.put(f"/api/v1/namespaces/{namespace}/pods", pod)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """An installation of one replica, and a browser of ours."""
    browser = tmp_path / "browser"
    browser.write_text(BROWSER.format(folder=tmp_path))
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with FakeApiServer() as fake:
        found = Installed(tmp_path, fake, monkeypatch)
        found.pod("replica")
        yield found


def forwarded(kubectl: Installed, *words: str) -> Done:
    return asked(main, *words, "--forward", "--kubeconfig", kubectl.kubeconfig)


def opened(kubectl: Installed, *words: str) -> Done:
    return asked(main, "map", "--open", "--kubeconfig", kubectl.kubeconfig, *words)


def test_the_map_opens_once_it_answers_until_kubectl_ends(kubectl: Installed) -> None:
    kubectl.pod("other", "gpus")
    with running(switched()) as service:
        port = service.ports[1]
        # It ends once the browser is there.
        waits = f"while not os.path.exists({str(kubectl.folder / 'opened')!r}): time.sleep(0.01)"
        kubectl.forwards(port, waits, "sys.exit('error: lost connection to pod')")
        done = opened(kubectl, "--context", "fake", "--system", "gpus")
    url = f"http://127.0.0.1:{port}/map"
    assert done.returncode == 2
    ended = "error: --open: kubectl port-forward has ended: error: lost connection to pod\n"
    assert done.stderr == ended
    assert done.stdout == f"The map is at {url} until you press Ctrl-C.\n"
    assert (kubectl.folder / "opened").read_text() == f"{url}\n"
    assert kubectl.words == (
        f"--kubeconfig {kubectl.kubeconfig} --context fake --namespace gpus port-forward "
        "--address=127.0.0.1 pod/other :admin"
    )


def test_without_a_browser_the_address_is_printed(
    kubectl: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    with running(switched()) as service:
        kubectl.forwards(service.ports[1], "pass")
        done = opened(kubectl)
        assert f"The map is at http://127.0.0.1:{service.ports[1]}/map until" in done.stdout
    assert done.stderr.startswith("No browser could be started; open the address yourself.\n")


def test_a_file_has_no_page_to_open() -> None:
    done = asked(main, "map", "--open", "--cluster", "examples/clusters/where.yaml")
    message = (
        "error: --open and --cluster: only one of them is allowed; a cluster file has no extender\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_kubectl_ends_with_the_command(kubectl: Installed, number: int, code: int) -> None:
    command = [sys.executable, "-m", "scheduler_extender", "map", "--open"]
    with running(switched()) as service:
        kubectl.forwards(service.ports[1])
        with started([*command, "--kubeconfig", str(kubectl.kubeconfig)]) as child:
            eventually(lambda: (kubectl.folder / "opened").exists(), "the browser was started")
            assert kubectl.runs
            child.send_signal(number)
            assert child.wait(PATIENCE) == code
    assert not kubectl.runs


FORBIDDEN = (
    'error: error upgrading connection: pods "replica" is forbidden: User "ada" cannot create '
    'resource "pods/portforward" in API group "" in the namespace "gpu-topology-system"'
)


@pytest.mark.parametrize(
    ("does", "message"),
    [
        pytest.param(
            f"sys.exit({FORBIDDEN!r})",
            "you need permission to create pods/portforward in the namespace gpu-topology-system",
            id="right",
        ),
        pytest.param(
            "sys.exit('error: unable to listen on any of the requested ports')",
            "kubectl port-forward: error: unable to listen on any of the requested ports",
            id="refused",
        ),
        pytest.param("pass", "kubectl port-forward: kubectl printed nothing", id="silent"),
        pytest.param(
            "os.write(2, b'error: \\xe9')",
            "kubectl port-forward: error: \N{REPLACEMENT CHARACTER}",
            id="not UTF-8",
        ),
    ],
)
def test_what_cannot_be_forwarded_is_one_line(kubectl: Installed, does: str, message: str) -> None:
    kubectl.does(does)
    done = opened(kubectl)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: --open: {message}\n")
    done = forwarded(kubectl, "nodes")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: --forward: {message}\n")


def test_a_pod_that_does_not_answer_is_reported_with_what_kubectl_says(kubectl: Installed) -> None:
    kubectl.forwards(free_port(), STAYS, then="error: lost connection to pod")
    done = opened(kubectl)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: --open: the pod replica does not answer: error: lost connection to pod\n"
    )
    assert not kubectl.runs


# A program that kubectl starts to log in, which keeps its output open.
STARTED = (
    "import subprocess; login = subprocess.Popen(['sleep', '600'])",
    "pathlib.Path(sys.argv[0] + '.login').write_text(str(login.pid))",
)


@pytest.mark.parametrize("ready", [True, False], ids=["forwards", "fails"])
def test_the_command_does_not_wait_for_what_kubectl_has_started(
    kubectl: Installed, *, ready: bool
) -> None:
    with running(switched()) as service:
        forwards = f"Forwarding from 127.0.0.1:{service.ports[1]} -> 8889"
        message = forwards if ready else "error: logged out"
        kubectl.does(*STARTED, f"print({message!r}, flush=True)", STAYS)
        command = [sys.executable, "-m", "scheduler_extender", "nodes", "--forward"]
        with started([*command, "--kubeconfig", str(kubectl.kubeconfig)]) as child:
            if not ready:
                eventually(lambda: (kubectl.folder / "kubectl.login").exists(), "a login began")
                child.send_signal(signal.SIGTERM)
            assert child.wait(PATIENCE) == (0 if ready else 143)
    os.kill(int((kubectl.folder / "kubectl.login").read_text()), signal.SIGKILL)


def test_without_kubectl(kubectl: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(kubectl.folder / "nowhere"))
    done = opened(kubectl)
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "error: --open: kubectl is not on the PATH; it is needed to forward the port\n",
    )


def test_without_a_ready_pod_there_is_no_extender_to_ask(kubectl: Installed) -> None:
    done = forwarded(kubectl, "nodes", "--system", "elsewhere")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --forward: the namespace elsewhere has no pod of the extender; give its "
        "namespace with --system\n",
    )
    kubectl.pod("starts", "elsewhere", ready=False, term=7)
    done = forwarded(kubectl, "nodes", "--system", "elsewhere")
    assert done.stderr == (
        "error: --forward: no pod of the extender in the namespace elsewhere is ready\n"
    )
    kubectl.fake.refuse(403, None, path=".*/elsewhere/pods")
    done = forwarded(kubectl, "nodes", "--system", "elsewhere")
    assert done.stderr == (
        "error: --forward: you need permission to list pods in the namespace elsewhere\n"
    )


def test_the_leader_is_asked_if_it_is_ready(kubectl: Installed) -> None:
    with running(switched()) as service:
        kubectl.forwards(service.ports[1])
        kubectl.pod("leads", term=12)
        kubectl.pod("led", term=9)
        assert forwarded(kubectl, "nodes").returncode == 0
        assert " pod/leads " in kubectl.words
        kubectl.pod("leads", term=12, ready=False)
        assert forwarded(kubectl, "nodes").returncode == 0
        assert " pod/led " in kubectl.words


def test_the_namespace_is_the_one_of_the_context(kubectl: Installed) -> None:
    found = cluster_of({PAIRS: {"a": Held((0,)), "b": Held((2,))}})
    found.put_pod(waiting("wants", gpu_request(2, NVLINKED)))
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "team"
    kubectl.kubeconfig.write_text(yaml.safe_dump(config))
    with running(cluster=found) as service:
        kubectl.forwards(service.ports[1])
        assert forwarded(kubectl, "why", "wants").stdout.startswith("team/wants\n")
        assert "team/wants" in forwarded(kubectl, "waiting").stdout


@pytest.mark.parametrize("command", ["nodes", "map", "pods", "waiting", "idle"])
def test_the_extender_is_asked_for_what_it_knows(kubectl: Installed, command: str) -> None:
    with running(switched(), pcie()) as service:
        kubectl.forwards(service.ports[1])
        done = forwarded(kubectl, command, "-o", "name")
    assert (done.returncode, done.stderr) == (0, "")
    names = ["node/pcie", "node/switched"] if command in ("nodes", "map") else []
    assert done.stdout.split() == names
    assert not kubectl.runs


def test_the_extender_answers_everything_about_one_node(kubectl: Installed) -> None:
    with running(switched()) as service:
        kubectl.forwards(service.ports[1])
        done = forwarded(kubectl, "node", "switched")
        assert (done.returncode, done.stderr) == (0, "")
        found = yaml.safe_load(done.stdout)
        assert found["gpus"] == 4
        assert found["summary"] in done.stdout, "written as people read it: 4 ×, not \\xD7"
        unknown = forwarded(kubectl, "node", "nobody")
        refused(
            unknown,
            "--forward: the pod replica answers 404 for /v1/nodes/nobody: "
            '{"error":"node nobody is unknown"}',
        )


def test_the_extender_says_why_a_pod_waits(kubectl: Installed) -> None:
    found = cluster_of({PAIRS: {"a": Held((0,)), "b": Held((2,))}})
    found.put_pod(waiting("wants", gpu_request(2, NVLINKED)))
    jobs = "/apis/batch/v1/namespaces/team/jobs"
    uid = kubectl.fake.put(jobs, {"kind": "Job", "metadata": {"name": "train"}})["metadata"]["uid"]
    owner = {"kind": "Job", "name": "train", "uid": uid, "controller": True}
    made = pod(2, {"link": "nvlink"}, name="wants", uid="wants")
    made["metadata"] |= {"namespace": "team", "ownerReferences": [owner]}
    kubectl.fake.put("/api/v1/namespaces/team/pods", made)
    with running(cluster=found) as service:
        kubectl.forwards(service.ports[1])
        done = forwarded(kubectl, "why", "team/wants")
        assert (done.returncode, done.stderr) == (1, "")
        assert "GPU 0 is held by team/a" in done.stdout
        assert "team/a on train-07 ends" in done.stdout
        job = forwarded(kubectl, "why", "job/train", "-n", "team")
        assert (job.returncode, job.stdout) == (1, done.stdout)
        none = forwarded(kubectl, "why", "team/nobody")
        refused(
            none,
            "--forward: the pod replica answers 404 for /v1/explain/team/nobody: "
            '{"error":"pod team/nobody is unknown or requests no GPUs"}',
        )


def test_doctor_reads_what_kube_scheduler_has_asked(kubectl: Installed) -> None:
    with running(switched()) as service:
        kubectl.forwards(service.ports[-1])
        done = forwarded(kubectl, "doctor", "-o", "json")
    assert done.stderr == ""
    assert '"check": "scheduler"' in done.stdout
    assert kubectl.words.endswith(" pod/replica :metrics")


def test_a_file_has_no_extender_to_ask(kubectl: Installed) -> None:
    for words in (("nodes",), ("why", "a"), ("node", "a")):
        done = forwarded(kubectl, *words, "--cluster", "examples/clusters/why.yaml")
        refused(done, "--cluster and --forward: only one of them is allowed")


@pytest.mark.parametrize(
    ("words", "path"),
    [
        pytest.param(("nodes", "--forward"), "/v1/snapshot", id="snapshot"),
        pytest.param(("node", "a", "--forward"), "/v1/nodes/a", id="node"),
        pytest.param(("why", "a", "-n", "team", "--forward"), "/v1/explain/team/a", id="pod"),
        pytest.param(("doctor", "--forward"), "/metrics", id="metrics"),
        pytest.param(("map", "--open"), "/map", id="map"),
    ],
)
def test_a_port_without_the_path_is_reported(
    kubectl: Installed, words: tuple[str, ...], path: str
) -> None:
    with running(switched()) as service:
        kubectl.forwards(service.ports[0])  # kube-scheduler's
        done = asked(main, *words, "--kubeconfig", kubectl.kubeconfig)
    message = f'the pod replica answers 404 for {path}: {{"error":"Not Found"}}'
    refused(done, f"{words[-1]}: {message}")
