"""``check`` of a file that has several pods: each is judged, and groups are judged as groups."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import Done, asked, refused
from tests.nodes import pod

GANG = "manifests/samples/gangs/podgroup.yaml"
PRIORITY_PODS = "manifests/samples/neighbours/priority-pods.yaml"
MIXED = "examples/clusters/mixed.yaml"
STYLE = re.compile(r"\x1b\[[0-9;]*m")
SIZE = {"link": "nvlink", "group-size": "4"}


def check(path: object, cluster: object = MIXED, *words: str) -> Done:
    return asked(main, "check", path, "--cluster", cluster, *words)


def as_json(path: object, cluster: object = MIXED) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(check(path, cluster, "--output", "json").stdout)
    return found


def file(folder: Path, *documents: dict[str, Any]) -> Path:
    path = folder / "pods.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def bridged(folder: Path, count: int) -> Path:
    """Nodes of two linked pairs each."""
    group = {"kind": "MachineGroup", "machine": "a100-pcie-4-bridged", "count": count}
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump({**group, "namePrefix": "n-"}))
    return path


def member(name: str, count: int = 2, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    made = {"kind": "Pod", **pod(count, SIZE if annotations is None else annotations, name=name)}
    made["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
    return made


def test_pods_without_a_group_are_judged_each_by_itself() -> None:
    done = check(PRIORITY_PODS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("batch-quad and deadline-quad each request 4 GPUs\n")
    assert "each of the 2 pods without a group is evaluated as if alone" in done.stdout
    found = as_json(PRIORITY_PODS)
    assert [each["pod"] for each in found["pods"]] == ["batch-quad", "deadline-quad"]
    assert found["groups"] == []


def test_members_of_a_group_are_judged_together() -> None:
    done = check(GANG)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all of its 4 members fit at once" in done.stdout
    found = as_json(GANG)
    assert len(found["pods"]) == 4
    (group,) = found["groups"]
    assert (group["group"], group["members"], group["fit"]) == ("podgroup/gang", 4, 4)


@pytest.mark.parametrize("here", [4, 1], ids=["all in the file", "one in the file"])
def test_nothing_is_promised_to_a_group_that_does_not_fit_as_a_whole(
    here: int, tmp_path: Path
) -> None:
    """Each of four members alone would be promised its pair on this node, which has two pairs."""
    path, cluster = file(tmp_path, *(member(f"w-{i}") for i in range(here))), bridged(tmp_path, 1)
    done = check(path, cluster)
    assert (done.returncode, done.stderr) == (1, "")
    words = " ".join(done.stdout.split())
    assert "guaranteed" not in words
    assert "expected" not in words
    assert "group podgroup/gang: only 2 of its 4 members fit at once" in words
    assert "no node takes it: only 2 of the group's 4 members fit at once (1 node)" in words
    found = as_json(path, cluster)
    for each in found["pods"] if here > 1 else [found]:
        (node,) = each["nodes"]
        assert (node["verdict"], node["score"], node["outcomes"]) == ("not-now", None, [])
        assert node["message"] == "only 2 of the group's 4 members fit at once"
    assert (found["groups"][0] if here > 1 else found["group"])["fit"] == 2
    assert check(path, bridged(tmp_path, 2)).returncode == 0, "two such nodes have four pairs"


def test_members_that_ask_for_different_things_count_each_for_itself(tmp_path: Path) -> None:
    """Two pairs and a quad: neither of two nodes has room for all, both together do."""
    mixed = [member("a", 2), member("b", 2), member("c", 4, {"group-size": "3"})]
    for each in mixed:
        each["metadata"]["annotations"]["gpu-topology.io/group-size"] = "3"
    path = file(tmp_path, *mixed)
    done = check(path, bridged(tmp_path, 1))
    assert done.returncode == 1
    assert "of its 3 members fit at once, so the group waits" in " ".join(done.stdout.split())
    done = check(path, bridged(tmp_path, 2))
    assert done.returncode == 0, done.stdout
    assert "a and b each request 2 GPUs" in done.stdout


def test_a_group_beside_a_pod_of_its_own(tmp_path: Path) -> None:
    alone = {"kind": "Pod", **pod(1, name="alone")}
    done = check(file(tmp_path, *(member(f"w-{i}") for i in range(4)), alone), bridged(tmp_path, 1))
    assert done.returncode == 1
    assert "1 of 1 node would take it" in done.stdout, "the group does not hold up the other pod"


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("path", [GANG, PRIORITY_PODS])
def test_it_fits_a_terminal(path: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    for form in ("table", "wide"):
        lines = STYLE.sub("", check(path, MIXED, "-o", form).stdout).splitlines()
        assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("columns", [30, 40, 60])
def test_a_narrow_terminal_gets_a_paragraph_for_each_node(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = "manifests/samples/mig-slices.yaml"
    wide = check(sample, "examples/clusters/mig.yaml", "-o", "wide").stdout
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    narrow = STYLE.sub("", check(sample, "examples/clusters/mig.yaml", "-o", "wide").stdout)
    assert max(map(len, narrow.splitlines())) <= columns
    lines = [line.rstrip() for line in narrow.splitlines()]
    assert lines.count("parts-00") == 1
    assert lines[lines.index("part-00") + 1] == "  guaranteed, score 10"
    assert lines[lines.index("parts-00") + 1] == "  not-guaranteed, score –"
    assert set(narrow.replace(",", "").split()) <= set(wide.replace(",", "").split())


def test_sets_of_gpus_are_not_wrapped_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sample = "manifests/samples/shared-memory.yaml"
    lines = check(sample, "examples/clusters/shared.yaml", "-o", "wide").stdout.splitlines()
    assert sum("0 | 1 | 2 | 3" in line for line in lines) == 4


def test_pods_without_gpus_of_a_file_are_named(tmp_path: Path) -> None:
    none = [{"kind": "Pod", **pod(None, name=name)} for name in ("a", "b")]
    done = check(file(tmp_path, *none))
    refused(
        done, "no pod requests a GPU (nvidia.com/gpu), so there is nothing to check: Pod a, Pod b"
    )


def test_too_many_pods_are_refused_at_once(tmp_path: Path) -> None:
    text = json.dumps({"kind": "Pod", **pod(1)})
    path = tmp_path / "pods.yaml"
    path.write_text(f'{{"kind": "List", "items": [{",".join([text] * 4097)}]}}')
    done = check(path)
    refused(done, "at most 4,096 pods are allowed in a file, but there are 4,097")
