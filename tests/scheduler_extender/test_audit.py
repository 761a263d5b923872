"""What an audit finds on three clusters, with numbers that were worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.audit.trapnodes import PERHAPS
from scheduler_extender.cli import main
from tests.commands import asked
from tests.nodes import pod
from tests.scheduler_extender.auditing import (
    AFFINITY,
    CLEAN,
    FRAGMENTED,
    TRAPS,
    Object,
    event,
    failed,
    text,
    waits,
)

Audit = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def audit(folder: Path, objects: Sequence[Object], *words: str) -> Audit:
    path = folder / "cluster.yaml"
    path.write_text(text(objects))
    done = asked(main, "audit", "--cluster", path, "-o", "json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def figures(found: Audit) -> dict[str, dict[str, int]]:
    return {
        name: {key: n for key, n in part.items() if type(n) is int}
        for name, part in found.items()
        if isinstance(part, dict)
    }


def test_a_clean_cluster(folder: Path) -> None:
    # `half` has GPUs 0 to 3, all on NUMA node 0; eight GPUs are never on one NUMA node, so `whole`
    # lacks nothing that the machine has. GPUs 4 to 7 of `a` are free.
    assert figures(audit(folder, CLEAN)) == {
        "refusedPods": {"pods": 0, "keptOff": 0, "unknown": 0, "doubtful": 0},
        "spreadPods": {"pods": 2, "withoutNvlinks": 0, "overNumaNodes": 0, "better": 0},
        "freeGpus": {"free": 4, "useless": 0},
        "trapNodes": {"nodes": 0},
        "waitingPods": {"pods": 0, "placeable": 0},
    }


def test_trap_nodes(folder: Path) -> None:
    found = audit(folder, TRAPS, "--since", "6h")
    assert figures(found) == {
        # Since 6:00: old, again (in three sources), broken, out. The kubelet of `spread` refuses
        # four GPUs, so old and again would have been kept off. One GPU fits on `packed`. Of out
        # it is not known how many GPUs it asked for, and of perhaps not whether it asked for any.
        "refusedPods": {"pods": 4, "keptOff": 2, "unknown": 1, "doubtful": 1},
        "spreadPods": {"pods": 1, "withoutNvlinks": 0, "overNumaNodes": 0, "better": 0},
        # 6 GPUs on spread, 6 on packed. packed takes the pod with four.
        "freeGpus": {"free": 12, "useless": 6},
        "trapNodes": {"nodes": 2},
        "waitingPods": {"pods": 2, "placeable": 1},
    }
    traps = {(row["request"], row["refuses"]): row["nodes"] for row in found["trapNodes"]["rows"]}
    assert traps == {
        ("4 GPUs", "now"): ["spread"],
        ("8 GPUs", "even when it is empty"): ["packed", "spread"],
    }, "eight GPUs are on two NUMA nodes; `any` runs with eight where no policy is"
    rows = {(row["node"], row["reason"]): row for row in found["refusedPods"]["rows"]}
    assert rows["spread", AFFINITY]["names"] == ["default/again", "default/old"]
    assert rows["spread", AFFINITY]["last"] == "2026-06-01T11:00:00Z"
    assert set(rows) == {
        ("spread", AFFINITY),
        ("packed", "UnexpectedAdmissionError"),
        ("packed", "OutOfnvidia.com/gpu"),
    }
    assert [row["node"] for row in found["freeGpus"]["rows"]] == ["spread"]


def test_a_pod_that_the_extender_lets_in_is_not_kept_off(folder: Path) -> None:
    # A pod with two GPUs runs, and no report says which. Its kubelet refuses four GPUs only if two
    # on each NUMA node are taken, so the extender lets a plain pod in.
    policies = {"policy": "any", "topologyManagerPolicy": "single-numa-node"}
    group = {"kind": "MachineGroup", "machine": "hgx-h100-8", "count": 1, "namePrefix": "a-"}
    runs = pod(2, name="runs", uid="runs", node="a-00", phase="Running")
    pods = [{**each, "kind": "Pod"} for each in (runs, pod(4, name="waits", uid="waits"))]
    refused = failed("refused", 4, "a-00", "11:00")
    found = audit(folder, [{**group, "allocator": policies}, *pods, refused])
    assert figures(found)["refusedPods"]["keptOff"] == 0
    (trap,) = found["trapNodes"]["rows"]
    assert (trap["request"], trap["refuses"]) == ("4 GPUs", PERHAPS)


def test_a_fragmented_cluster(folder: Path) -> None:
    found = audit(folder, FRAGMENTED)
    assert figures(found) == {
        "refusedPods": {"pods": 0, "keptOff": 0, "unknown": 0, "doubtful": 0},
        # across has 0 and 2: no NVLink, two NUMA nodes. quad has all four, which no machine links.
        # `good` has 2 and 3 free, a pair.
        "spreadPods": {"pods": 3, "withoutNvlinks": 1, "overNumaNodes": 1, "better": 1},
        # 1 and 3 on crossed, 2 and 3 on good: three fit nowhere.
        "freeGpus": {"free": 4, "useless": 4},
        "trapNodes": {"nodes": 0},
        "waitingPods": {"pods": 1, "placeable": 0},
    }
    (row,) = found["spreadPods"]["rows"]
    assert (row["pod"], row["gpus"], row["better"]) == ("default/across", "0,2", ["good"])


BARE = [
    {
        "kind": "Node",
        "metadata": {"name": "n", "uid": "n"},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    },
    failed("refused", 4, "n", "11:00"),
    event("gone", "n", "11:30", message="cannot allocate unhealthy devices nvidia.com/gpu"),
    event("elsewhere", "cpu-only", "11:40"),
    waits("two", 2),
]


def test_without_records_it_says_less_and_says_so(folder: Path) -> None:
    found = audit(folder, BARE)
    assert figures(found)["refusedPods"] == {"pods": 2, "keptOff": 0, "unknown": 2, "doubtful": 0}
    assert figures(found)["waitingPods"] == {"pods": 1, "placeable": 0}
    unknown = {name for name, part in found.items() if isinstance(part, dict) and not part["known"]}
    assert unknown == {"spreadPods", "freeGpus", "trapNodes"}
    assert any("no node has a record" in note for note in found["notes"])


def test_only_the_audit_reads_a_file_without_records(folder: Path) -> None:
    path = folder / "cluster.yaml"
    path.write_text(text(BARE))
    done = asked(main, "nodes", "--cluster", path)
    assert done.returncode == 2
    assert "no GPUTopology describes the GPUs" in done.stderr
