"""``gpu-topology agent`` as a user types it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import asked
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.kubelet import GPU, FakeKubelet
from tests.fakes.nvml.testing import fake_nvml
from tests.programs import free_port, started
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.codec import decode
from topology.machines import machine

ROOT = Path(__file__).parents[3]
AGENT = [sys.executable, "-m", "scheduler_extender", "agent"]
RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"


def run(
    *words: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # Outside a cluster, whatever this machine is.
    context = {k: v for k, v in os.environ.items() if not k.startswith("KUBERNETES_")}
    return subprocess.run(
        [*AGENT, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=FOREVER,
        env={**context, **(environment or {})},
    )


def test_a_box_with_nothing_says_what_it_cannot_see(tmp_path: Path) -> None:
    done = run("--once", "--print", "--node-name=box", f"--pod-resources={tmp_path}/none.sock")
    assert done.returncode == 0, done.stderr
    record = decode(yaml.safe_load(done.stdout), strict=True)
    assert record.topology.name == "box"
    assert record.report is not None
    assert "none.sock: No such file or directory" in done.stderr
    assert "not read: Topology Manager's policy" in done.stderr
    assert not [line for line in done.stderr.splitlines() if not line.startswith("not read: ")]


def test_a_gpu_machine_prints_itself_and_its_holders(tmp_path: Path) -> None:
    played = machine("dgx1-v100").topology("box")
    fake = fake_nvml(tmp_path, played)
    with tempfile.TemporaryDirectory(prefix="agent-") as folder, FakeKubelet(Path(folder)) as node:
        uuids = [str(gpu.uuid) for gpu in played.gpus]
        node.numa = {str(g.uuid): g.topology_nodes or () for g in played.gpus}
        node.allocatable(*uuids)
        node.show("team-a", "train-0", {"main": {GPU: uuids[:2]}})
        done = run(
            "--once", "--print", "--node-name=box", "--topology-manager-policy=none",
            "--allocator-policy=best-effort", f"--pod-resources={node.socket}",
            f"--sysfs={tmp_path}", environment=fake.environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wire = yaml.safe_load(done.stdout)
    record = decode(wire, strict=True)
    assert record.topology.gpus == played.gpus
    assert record.topology.links == played.links
    assert record.report is not None
    assert not record.report.not_ready
    (allocation,) = record.report.allocations
    assert (allocation.namespace, allocation.pod, allocation.pod_uid) == ("team-a", "train-0", "")
    assert list(allocation.device_ids) == sorted(uuids[:2])
    assert wire["status"]["summary"] == {"gpus": 8, "free": 6, "links": "NVLink 1-2"}
    assert [line.partition(": ")[2] for line in done.stderr.splitlines()] == [
        "CPU and Memory Managers' policies: neither the kubelet nor a file shows them, so pods "
        "of the QoS class Guaranteed get no promises",
        "PCI tree: No such file or directory",
    ]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param([], None, id="not told"),
        pytest.param(["--fail-requests-greater-than-one=true"], True, id="true"),
        pytest.param(["--fail-requests-greater-than-one=false"], False, id="false"),
    ],
)
def test_an_operators_word_on_several_shares(
    flags: list[str], expected: bool | None, tmp_path: Path
) -> None:
    fake = fake_nvml(tmp_path, machine("t4-4").topology("box"))
    with tempfile.TemporaryDirectory(prefix="agent-") as folder, FakeKubelet(Path(folder)) as node:
        node.allocatable(*(f"{g.uuid}::{n}" for g in fake.topology.gpus for n in range(2)))
        done = run(
            "--once", "--print", "--node-name=box", f"--pod-resources={node.socket}", *flags,
            environment=fake.environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (resource,) = yaml.safe_load(done.stdout)["spec"]["resources"]
    assert resource["strategy"] == "time-slicing"
    assert resource.get("failRequestsGreaterThanOne") is expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["--print"], "--print needs --once", id="print without once"),
        pytest.param([], "outside a cluster, give --kubeconfig", id="outside a cluster"),
        pytest.param(["--once"], "outside a cluster, give --kubeconfig", id="once, outside"),
        pytest.param(["--allocator-policy=x"], "allowed are auto, best-effort", id="policy"),
        pytest.param(
            ["--fail-requests-greater-than-one=1"], "allowed are auto, true, false", id="shares"
        ),
        pytest.param(["--topology-manager-policy=x"], "allowed are auto, none", id="manager"),
        pytest.param(["--topology-manager-scope=x"], "allowed are auto, container", id="scope"),
        pytest.param(["--metrics-port=70000"], "allowed are 0 to 65535", id="port"),
        pytest.param(
            ["--once", "--print", "--node-name=../x"], "allowed are names of a-z", id="name"
        ),
        pytest.param(["--host="], "--host: give an address", id="host"),
        pytest.param(["--once", "--print", "--boot-id=/none"], "--boot-id: /none", id="boot id"),
        pytest.param(["--kubeconfig=/none"], "kubeconfig /none", id="kubeconfig"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("KUBERNETES_")]:
        monkeypatch.delenv(name)  # outside a cluster, whatever this machine is
    done = asked(main, "agent", *words)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_runs_serves_and_stops(tmp_path: Path) -> None:
    played = machine("dgx1-v100").topology("n")
    fake = fake_nvml(tmp_path, played)
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="agent-") as folder,
        FakeKubelet(Path(folder)) as node,
        FakeApiServer() as api,
    ):
        node.allocatable(*(str(gpu.uuid) for gpu in played.gpus))
        api.put("/api/v1/nodes", {"kind": "Node", "metadata": {"name": "n", "uid": "node-1"}})
        kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
        words = [
            "--node-name=n", f"--kubeconfig={kubeconfig}", f"--pod-resources={node.socket}",
            f"--metrics-port={port}", "--topology-manager-policy=none",
        ]  # fmt: skip
        with started(
            [*AGENT, *words],
            cwd=ROOT,
            env={**os.environ, **fake.environment},
            stderr=subprocess.DEVNULL,
        ) as child:

            def published() -> bool:
                assert child.poll() is None
                return any("status" in record for record in api.items(RECORDS))

            eventually(published)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
                # The record is there before its writer has heard so, and counts it.
                written = 'gpu_topology_agent_writes_total{what="status"} '
                eventually(lambda: written in http.get("/metrics").text, "a write is counted")
                metrics = http.get("/metrics").text
                health, lost = http.get("/healthz"), http.get("/else")
                ready = http.get("/readyz")
            child.send_signal(signal.SIGTERM)
            assert child.wait(PATIENCE) == 0
    assert (health.status_code, health.text) == (200, "ok\n")
    assert lost.status_code == 404
    assert (ready.status_code, ready.text) == (200, "ok\n")
    assert "_created" not in metrics
    assert "gpu_topology_agent_gpus 8.0" in metrics
    assert "gpu_topology_agent_nvml_up 1.0" in metrics
    looks = re.search(r"^gpu_topology_agent_nvml_look_seconds_count (\S+)$", metrics, re.MULTILINE)
    assert looks is not None
    assert float(looks[1]) >= 1
    spent = re.search(r"^gpu_topology_agent_nvml_look_seconds_sum (\S+)$", metrics, re.MULTILINE)
    assert spent is not None
    assert 0 < float(spent[1]) < PATIENCE
    assert "gpu_topology_agent_topology_manager_policy_unknown 0.0" in metrics
    assert "process_resident_memory_bytes" in metrics
    uuid = played.gpus[3].uuid
    assert f'gpu_topology_agent_nvlinks_active{{gpu="3",uuid="{uuid}"}} 6.0' in metrics
    assert f'gpu_topology_agent_nvlinks_expected{{gpu="3",uuid="{uuid}"}} 6.0' in metrics
