"""Untrusted texts in output, and outputs that are closed, full or of another encoding."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_extender.cli import main
from tests.commands import ROOT, asked
from tests.waiting import FOREVER
from topology.codec import encode
from topology.core.devices import DeviceId, Nic, PodUid
from topology.core.report import (
    Allocation,
    Condition,
    Health,
    IdleAllocation,
    MissingGpu,
    Report,
)
from topology.machines import machine

GPU = "nvidia.com/gpu"
WHY = "examples/clusters/why.yaml"
BAD = "\x1b]0;a title\x07\x1b[2J\x9b2J\x7f\u202ednob\u2028\u200f"
STYLE = re.compile(r"\x1b\[[0-9;]*m")
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


FORMS = ("table", "wide", "json", "yaml", "name")


def clusters(untrusted: str) -> str:
    """A cluster file with an untrusted text wherever no rule of Kubernetes bounds it."""
    node = machine("l40s-4").topology("n")
    node = replace(
        node,
        gpus=tuple(replace(gpu, product=untrusted, vendor=untrusted) for gpu in node.gpus),
        nics=(Nic(untrusted, numa_node=0),),
    )
    ids = [(DeviceId(gpu.uuid),) for gpu in node.gpus]
    since = "2026-01-01T00:00:00Z"
    held = Allocation(PodUid("u0"), untrusted, untrusted, untrusted, GPU, ids[0])
    report = Report(
        "b",
        1,
        allocations=(held,),
        idle=(IdleAllocation(held.pod_uid, untrusted, GPU, since),),
        health=(Health(node.gpus[2].uuid, False, untrusted, since),),
        conditions=(Condition("Ready", False, untrusted, untrusted, since),),
        missing=(MissingGpu(untrusted, True, since),),
        observed_at=since,
    )
    record = encode(node, report)
    documents = list(yaml.safe_load_all((ROOT / WHY).read_text()))
    for pod in documents:
        if pod.get("metadata", {}).get("name") == "train":
            pod["metadata"]["annotations"] = {"gpu-topology.io/link": untrusted, "a": untrusted}
            pod["status"] = {"conditions": [{"type": "PodScheduled", "message": untrusted}]}
    waits = {"containers": [{"name": "m", "resources": {"limits": {GPU: 4}}}]}
    named = {"name": "waits", "namespace": "team-b", "annotations": {"gpu-topology.io/link": "pix"}}
    pod = {"kind": "Pod", "metadata": named, "spec": waits}
    return str(yaml.safe_dump_all([*documents, record, pod]))


BREAKS = "\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029"
HOSTILE_TEXTS = st.lists(
    st.sampled_from([*BREAKS, *BAD, "\x1b[2J", "\x00", "n: free", "[/red]"])
).map(lambda parts: f"a{''.join(parts)}b")
COMMANDS = (
    ("nodes",),
    ("map",),
    ("node", "n"),
    ("idle", "-A"),
    ("pods", "-A"),
    ("waiting", "-A"),
    ("why", "team-a/train"),
    ("why", "team-b/waits"),
    ("unblock", "team-b/waits"),
    ("check", "examples/workloads/job.yaml"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@given(untrusted=HOSTILE_TEXTS, colours=st.sampled_from(["", "1"]))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_untrusted_text_breaks_a_line_or_steers(
    words: tuple[str, ...],
    untrusted: str,
    colours: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it holds, a command prints as many lines as if it were letters."""
    monkeypatch.setenv("FORCE_COLOR", colours)
    forms = ("table", "yaml", "name") if words[0] in ("why", "unblock", "check") else FORMS
    for form in forms:
        printed = []
        for text in (untrusted, "".join(c if c.isprintable() else "x" for c in untrusted)):
            cluster = tmp_path / "cluster.yaml"
            cluster.write_text(clusters(text))
            done = asked(main, *words, "--cluster", cluster, "-o", form)
            assert done.returncode in (0, 1), done.stderr
            assert not STEERING.search(STYLE.sub("", done.stdout + done.stderr))
            printed.append([done.stdout.count("\n"), done.stderr.count("\n")])
        assert printed[0] == printed[1], form


def test_data_that_is_escaped_says_the_same(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(clusters(BAD))
    words = ("idle", "-A", "--cluster", cluster, "-o")
    found = json.loads(asked(main, *words, "json").stdout)
    assert f"{BAD}/{BAD}" in {row["pod"] for row in found["idle"]}
    assert yaml.safe_load(asked(main, *words, "yaml").stdout) == found
    assert asked(main, *words, "name").stdout.count("\n") == len(found["idle"])


def test_an_error_steers_no_terminal(tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    limits = {"limits": {"nvidia.com/gpu": 1}}
    spec = {"containers": [{"name": "main", "resources": limits}]}
    metadata = {"name": "x", "annotations": {"gpu-topology.io/link": BAD}}
    pod.write_text(yaml.safe_dump({"kind": "Pod", "metadata": metadata, "spec": spec}))
    done = asked(main, "check", pod, "--cluster", WHY)
    assert done.returncode == 2
    assert "gpu-topology.io/link" in done.stderr
    assert not STEERING.search(done.stderr)


@pytest.mark.parametrize(
    "when", ["0001-01-01T00:00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "x"]
)
def test_a_time_that_no_calendar_has_costs_no_answer(when: str, tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((ROOT / "examples/clusters/idle.yaml").read_text()))
    for document in documents:
        if document["kind"] == "GPUTopology":
            document["status"]["observedAt"] = when
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump_all(documents))
    for words in (("node", "train-01"), ("nodes", "-o", "wide"), ("idle", "-A"), ("pods", "-A")):
        done = asked(main, *words, "--cluster", cluster)
        assert (done.returncode, done.stderr) == (0, ""), words


def test_words_are_no_markup() -> None:
    done = asked(main, "idle", "--cluster", "examples/clusters/idle.yaml", "-n", "[/red]")
    assert done.returncode == 0
    assert done.stdout.startswith("no pod in the namespace [/red] holds GPUs")


def run(redirect: str, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """A command started by a shell, with its output redirected so; ``$?`` is its own."""
    command = " ".join([sys.executable, "-m", "scheduler_extender", *words])
    done = subprocess.run(
        ["/bin/bash", "-c", f"{command} {redirect}"],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=FOREVER,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


MAP = ("map", "--cluster", "examples/clusters/where.yaml")
WAITING = ("waiting", "-A", "--cluster", "examples/clusters/waiting.yaml")


def test_a_locale_without_our_characters_gets_question_marks() -> None:
    code, out, err = run("", *WAITING, env={"PYTHONIOENCODING": "ascii"})
    assert code in (0, 1)
    assert all(line.startswith("note: ") for line in err.splitlines())
    assert "default/waits" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    code, _, err = run(">/dev/full", *MAP)
    assert (code, err) == (2, "error: the answer cannot be written: No space left on device\n")


def test_without_any_output_a_command_still_ends_well() -> None:
    assert run(">&-", *MAP) == (0, "", "")


def test_a_reader_that_is_gone_is_no_no() -> None:
    code, _, err = run('| true; exit "${PIPESTATUS[0]}"', *MAP, "-o", "json")
    assert (code, err) == (0, "")
