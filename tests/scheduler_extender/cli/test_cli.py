"""Commands as a user types them: the list of commands, and what some of them print or serve."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import Done, asked, refused
from tests.programs import started
from tests.waiting import PATIENCE
from topology.codec import decode

ROOT = Path(__file__).parents[3]
CLUSTER = ROOT / "examples" / "clusters" / "mixed.yaml"
PAIR = ROOT / "manifests" / "samples" / "pair-nvlink.yaml"


def run(*words: str | Path, given: str = "") -> Done:
    return asked(main, *words, given=given)


def test_without_a_command_the_commands_are_listed() -> None:
    done = run()
    assert done.returncode == 2
    assert "Usage: gpu-topology" in done.stderr
    assert done.stderr.count("\n") > 10


def test_import_prints_a_record_that_can_be_used() -> None:
    text = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
    words = ("import", "-", "--node", "desk", "--product", "NVIDIA GeForce RTX 3090")
    done = run(*words, "--memory", "24576Mi", given=text)
    assert done.returncode == 0, done.stderr
    topology = decode(yaml.safe_load(done.stdout), strict=True).topology
    assert topology.links[0].bandwidth == pytest.approx(112.5)
    refused(run("import", "-", "--node", "desk", given="nothing here"), "standard input: line")


def test_machines_lists_and_prints() -> None:
    assert "dgx1-v100" in run("machines").stdout
    record = yaml.safe_load(run("machines", "dgx1-v100").stdout)
    assert len(decode(record, strict=True).topology.gpus) == 8
    record["spec"]["allocator"] |= {"topologyManagerPolicy": "restricted"}
    assert decode(record).topology.allocator.sees_topology, "any policy can be written into it"


def test_the_extender_serves_a_file_and_stops_at_a_signal() -> None:
    command = [sys.executable, "-m", "scheduler_extender", "extender", "--cluster", str(CLUSTER)]
    command += ["--port", "0", "--admin-port", "0", "--metrics-port", "0"]
    pod = yaml.safe_load(PAIR.read_text())
    pod["metadata"] |= {"namespace": "team-a", "uid": "u"}
    body = {"Pod": pod, "Nodes": None, "NodeNames": ["h100-00", "l40s-01"]}
    target = {"PodName": pod["metadata"]["name"], "PodNamespace": "team-a", "PodUID": "u"}
    with started(command, stderr=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stderr is not None
        reported = json.loads(child.stderr.readline())
        assert reported["event"] == "serving"
        url, admin = reported["scheduler"], reported["map"].removesuffix("/map")
        with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
            assert http.get(url.replace("/scheduler", "/readyz")).status_code == 200
            assert http.post(f"{url}/filter", json=body).json()["NodeNames"] == ["h100-00"]
            scores = http.post(f"{url}/prioritize", json=body).json()
            assert [row["Host"] for row in scores] == body["NodeNames"]
            bound = http.post(f"{url}/bind", json={**target, "Node": "h100-00"})
            assert bound.json() == {"Error": ""}
            assert http.get(reported["map"]).status_code == 200
            assert len(http.get(f"{admin}/v1/nodes").json()) == 8
            for path, text in (
                ("/openapi.json", "/v1/nodes"),
                ("/map", "h100-00"),
                ("/v1/snapshot", "h100-00"),
            ):
                answer = http.get(f"{admin}{path}")
                assert answer.status_code == 200, path
                assert text in answer.text
            assert "gpu_topology_placements_total" in http.get(reported["metrics"]).text
        child.terminate()
        assert child.wait(PATIENCE) == 0


def test_plain_http_outside_loopback_is_a_warning() -> None:
    command = [sys.executable, "-m", "scheduler_extender", "extender", "--cluster", str(CLUSTER)]
    command += ["--host", "0.0.0.0", "--port", "0", "--admin-port", "0", "--metrics-port", "0"]
    with started(command, stderr=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stderr is not None
        answer = json.loads(child.stderr.readline())
        assert answer["level"] == "warning"
        assert answer["event"].startswith("plain HTTP: every client that reaches port")
        serving = json.loads(child.stderr.readline())
        assert serving["map"].startswith("http://127.0.0.1:"), "people's port is on loopback"
