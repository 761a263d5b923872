"""Names that are not there, and those that were meant: of nodes and pods, in files."""

from pathlib import Path

import pytest

from scheduler_extender.cli import main
from tests.commands import ROOT, asked

WHY = "examples/clusters/why.yaml"
WHERE = ROOT / "examples" / "clusters" / "where.yaml"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["node", "serve-0"], "did you mean serve-00, serve-01, serve-02?"),
        (["node", "elsewhere"], ""),
        (["why", "finetune"], "did you mean team-a/finetune?"),
        (["why", "team-a/finetun"], "did you mean finetune?"),
        (["why", "team-c/finetun"], "did you mean team-a/finetune?"),
        (["why", "web"], ""),
        (["unblock", "train"], "did you mean team-a/train?"),
    ],
)
def test_a_name_that_is_like_another_one_is_reported(words: list[str], meant: str) -> None:
    done = asked(main, *words, "--cluster", WHY)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(meant) if meant else "did you mean" not in line


def test_a_pod_is_named_as_for_kubectl() -> None:
    for name in ("train", "pod/train", "po/train", "Pods/train"):
        done = asked(main, "why", name, "-n", "team-a", "--cluster", WHY)
        assert done.stdout.startswith("team-a/train\n"), done.stderr
        done = asked(main, "unblock", name, "-n", "team-a", "--cluster", WHY)
        assert done.stdout.startswith("no pod is worth evicting for team-a/train"), done.stderr


@pytest.mark.parametrize("command", ["why", "unblock"])
def test_of_a_pod_that_only_a_record_names_the_request_is_unknown(
    command: str, tmp_path: Path
) -> None:
    """``pods`` lists it, so it is not called unknown."""
    file = tmp_path / "cluster.yaml"
    pod = "  name: finetune\n  namespace: team-b\n  uid: finetune\n"
    file.write_text(WHERE.read_text().replace(pod, pod.replace("finetune", "other")))
    assert "team-b/finetune" in asked(main, "pods", "-A", "--cluster", file).stdout
    done = asked(main, command, "team-b/finetune", "--cluster", file)
    said = "only the record of train-00 names pod team-b/finetune, so its request is unknown"
    assert (done.returncode, done.stderr) == (2, f"error: {file}: {said}\n")
