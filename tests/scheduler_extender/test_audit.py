"""What an audit finds on three clusters, with numbers that were worked out by hand."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_extender.audit.trapnodes import PERHAPS
from scheduler_extender.cli import main
from scheduler_extender.cli.queries import described
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.files.clusterfile import parse
from scheduler_extender.verbs.filtering import filtered
from scheduler_extender.wire import Pod
from tests.commands import asked
from tests.nodes import pod, record_of
from tests.scheduler_extender.auditing import (
    AFFINITY,
    CLEAN,
    FRAGMENTED,
    H100,
    PAIRS,
    TRAPS,
    Object,
    at,
    event,
    failed,
    node,
    text,
    waits,
)
from topology.core.devices import NodeName
from topology.core.placement import Reason, Verdict
from topology.machines import machine

Audit = dict[str, Any]
FIRST, FOREVER = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"
NO_RECORDS = [
    {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
]


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


def test_an_event_of_a_time_to_come_hides_no_other_refusal(folder: Path) -> None:
    later = {**event("later", "n", "12:00", "OutOfnvidia.com/gpu"), "lastTimestamp": FOREVER}
    found = audit(folder, [*NO_RECORDS, event("now", "n", "12:00", "OutOfnvidia.com/gpu"), later])
    assert found["until"] == at("12:00")
    assert found["refusedPods"]["pods"] == 2


@pytest.mark.parametrize("words", [(), ("--since", "999999d")])
def test_no_time_is_too_early(folder: Path, words: Sequence[str]) -> None:
    first = {**event("a", "n", "12:00", "OutOfnvidia.com/gpu"), "lastTimestamp": FIRST}
    assert audit(folder, [*NO_RECORDS, first], *words)["refusedPods"]["pods"] == 0


@pytest.mark.parametrize("reason", ["OutOf" + "x" * 400, "OutOf<b>", "OutOf\u001b[31m", "OutOf a"])
def test_an_event_whose_reason_is_no_word_counts_for_nothing(folder: Path, reason: str) -> None:
    found = audit(folder, [*NO_RECORDS, event("odd", "n", "12:00", reason, "nvidia.com/gpu")])
    assert found["refusedPods"]["pods"] == 0


def test_names_in_an_event_are_no_longer_than_names(folder: Path) -> None:
    long = event("p" * 1000, "n" * 1000, "12:00", "OutOfnvidia.com/gpu")
    (row,) = audit(folder, [*NO_RECORDS, long])["refusedPods"]["rows"]
    assert (row["node"], row["names"]) == ("n" * 253, ["default/" + "p" * 253])


def test_a_clean_cluster(folder: Path) -> None:
    # `half` has GPUs 0 to 3, all on NUMA node 0; eight GPUs are never on one NUMA node, so `whole`
    # lacks nothing that the machine has. GPUs 4 to 7 of `a` are free.
    assert figures(audit(folder, CLEAN)) == {
        "refusedPods": {"pods": 0, "keptOff": 0, "unknown": 0, "doubtful": 0},
        "spreadPods": {"pods": 2, "withoutNvlinks": 0, "overNumaNodes": 0, "better": 0},
        "freeGpus": {"free": 4, "useless": 0},
        "trapNodes": {"nodes": 0},
        "waitingPods": {"pods": 0, "placeable": 0, "notEvaluated": 0},
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
        "waitingPods": {"pods": 2, "placeable": 1, "notEvaluated": 0},
    }
    assert found["refusedPods"]["headline"] == (
        "Kubelets refused 4 pods with GPUs on 2 nodes; as the nodes are now, the extender would "
        "keep off 2 of them (1 unknown); 1 more pod may have requested no GPUs"
    )
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


POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
REQUIRE: tuple[dict[str, str], ...] = (
    {},
    {"same-numa": "true"},
    {"link": "nvlink"},
    {"same-numa": "true", "link": "nvlink"},
)


@pytest.mark.parametrize("seed", range(8))
def test_kept_off_are_the_pods_that_filter_and_why_reject(seed: int, folder: Path) -> None:
    rng = random.Random(seed)
    full, empty, refused = list[Object](), list[Object](), list[Object]()
    for name in ("a", "b", "c", "d"):
        kind, policy = rng.choice([H100, PAIRS, "dgx1-v100"]), rng.choice(POLICIES)
        size = len(machine(kind).topology(NodeName(name)).gpus)
        held = {f"{name}{p}": (p,) for p in rng.sample(range(size), rng.randrange(size))}
        full += node(kind, name, held, policy=policy)
        empty += node(kind, name, {}, policy=policy)
        refused += [
            pod(
                rng.choice([1, 2, 3, 4, 8]),
                rng.choice(REQUIRE),
                name=f"{name}-{i}",
                uid=f"{name}-{i}",
            )
            | {"kind": "Pod"}
            for i in range(4)
        ]
    snapshots = [
        described(parse(text(each)), Verdict.EXPECTED).snapshot() for each in (full, empty)
    ]
    kept = set[str]()
    for each in refused:
        waiting, name = msgspec.convert(each, Pod), NodeName(each["metadata"]["name"][0])
        for snapshot in snapshots:
            (why,) = filtered(snapshot, waiting, [name]).rejected or [None]
            shown = next(a for a in answers_to(snapshot, record_of(each)) if a.node == name)
            assert shown.decision.rejection == why
            if why is not None and why.reason not in (Reason.BUSY, Reason.TOO_FEW):
                kept.add(waiting.metadata.name)
        each["spec"]["nodeName"] = name
        each["status"] = {"phase": "Failed", "reason": AFFINITY, "startTime": at("11:00")}
    found = figures(audit(folder, [*full, *refused]))["refusedPods"]
    assert found == {"pods": 16, "keptOff": len(kept), "unknown": 0, "doubtful": 0}


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
        "waitingPods": {"pods": 1, "placeable": 0, "notEvaluated": 0},
    }
    (row,) = found["spreadPods"]["rows"]
    assert (row["pod"], row["gpus"], row["better"]) == ("default/across", "0,2", ["good"])


def node_object(name: str, **offers: str) -> Object:
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": offers}}


BARE = [
    node_object("n", **{"nvidia.com/gpu": "8"}),
    node_object("other", **{"nvidia.com/mig-1g.10gb": "7"}),
    node_object("cpu-only", cpu="64"),
    failed("refused", 4, "n", "11:00"),
    event("gone", "n", "11:30", message="cannot allocate unhealthy devices nvidia.com/gpu"),
    event("elsewhere", "cpu-only", "11:40"),
    waits("two", 2),
]


def test_without_records_it_says_less_and_says_so(folder: Path) -> None:
    found = audit(folder, BARE)
    assert figures(found)["refusedPods"] == {"pods": 2, "keptOff": 0, "unknown": 2, "doubtful": 0}
    assert figures(found)["waitingPods"]["pods"] == 1
    unknown = {name for name, part in found.items() if isinstance(part, dict) and not part["known"]}
    assert unknown == {"spreadPods", "freeGpus", "trapNodes"}
    assert any("no node has a record" in note for note in found["notes"])
    assert (found["nodes"], found["nodesWithoutRecord"]) == (2, 2), "not the one without GPUs"


def test_nodes_without_a_record_are_counted(folder: Path) -> None:
    found = audit(folder, [*CLEAN, *BARE])
    assert (found["nodes"], found["nodesWithoutRecord"]) == (4, 2)
    assert figures(found)["refusedPods"]["unknown"] == 2


def test_every_waiting_request_is_evaluated_as_long_as_there_is_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = [(f"w{i}", {"min-gpu-memory": f"{i}Gi"}) for i in range(1, 41)]
    waiting = [{**pod(1, more, name=name, uid=name), "kind": "Pod"} for name, more in asks]
    found = audit(folder, [*CLEAN, *waiting])
    assert figures(found)["waitingPods"] == {"pods": 40, "placeable": 40, "notEvaluated": 0}
    monkeypatch.setattr("scheduler_extender.cli.audit.SECONDS", 0.0)
    late = audit(folder, [*TRAPS, *waiting])
    assert figures(late)["waitingPods"] == {"pods": 42, "placeable": 0, "notEvaluated": 42}
    assert late["waitingPods"]["headline"].endswith("not evaluated in time: 42")
    assert late["freeGpus"]["headline"].endswith("not evaluated in time: 42 waiting pods")
    assert late["trapNodes"]["headline"].endswith("not all nodes were evaluated in time")
    assert figures(late)["refusedPods"]["unknown"] == 5


def test_only_the_audit_reads_a_file_without_records(folder: Path) -> None:
    path = folder / "cluster.yaml"
    path.write_text(text(BARE))
    done = asked(main, "nodes", "--cluster", path)
    assert done.returncode == 2
    assert "no GPUTopology describes the GPUs" in done.stderr
