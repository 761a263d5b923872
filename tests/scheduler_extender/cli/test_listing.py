"""``--output``, ``--sort-by`` and ``--no-headers`` of the commands that list."""

import json

import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import asked, refused

WHERE = ("--cluster", "examples/clusters/where.yaml")
IDLE = ("idle", "-A", "--cluster", "examples/clusters/idle.yaml")
CHECK = (
    "check",
    "manifests/samples/quad-preferred.yaml",
    "--cluster",
    "examples/clusters/mixed.yaml",
)
PAIR = "manifests/samples/pair-nvlink.yaml"
PODS = ("team-a/eval", "team-a/llm", "team-a/notebook", "team-b/finetune", "team-b/wrong-pair")
WHY = ("why", "team-a/train", "--cluster", "examples/clusters/why.yaml")
UNBLOCK = ("unblock", "waits", "--cluster", "examples/clusters/waiting.yaml")


def first_words(*words: str) -> list[str]:
    done = asked(main, *words, "--no-headers")
    assert done.stderr == ""
    return [line.split()[0] for line in done.stdout.splitlines()]


def test_numbers_are_sorted_with_the_largest_first_in_every_form() -> None:
    free = ["serve-00", "train-00", "serve-01", "train-01", "train-02"]
    assert first_words("nodes", *WHERE, "--sort-by", "FREE") == free
    names = asked(main, "nodes", *WHERE, "--sort-by", "free", "-o", "name").stdout.split()
    assert names == [f"node/{name}" for name in free]
    found = json.loads(asked(main, "nodes", *WHERE, "--sort-by", "free", "-o", "json").stdout)
    assert [each["node"] for each in found["nodes"]] == free


def test_texts_are_sorted_from_a_to_z() -> None:
    assert first_words("nodes", *WHERE, "--sort-by", "node") == sorted(first_words("nodes", *WHERE))
    machines = json.loads(asked(main, "nodes", *WHERE, "--sort-by", "machine", "-ojson").stdout)
    kinds = [each["machine"] for each in machines["nodes"]]
    assert kinds == sorted(kinds)
    assert len(set(kinds)) > 1


def test_times_are_sorted_by_their_length() -> None:
    """Days before hours before minutes, whatever their numbers."""
    found = json.loads(asked(main, *IDLE, "--sort-by", "idle", "-o", "json").stdout)["idle"]
    seconds = [each["idleSeconds"] for each in found]
    assert seconds == sorted(seconds, reverse=True)
    by_pod = first_words(*IDLE, "--sort-by", "pod")
    assert by_pod == sorted(by_pod)
    assert [each["pod"] for each in found] != by_pod


def test_what_has_no_number_comes_last() -> None:
    assert first_words("pods", "-A", *WHERE, "--sort-by", "runs") == sorted(PODS)
    nodes = first_words(*CHECK[:1], PAIR, *CHECK[2:], "-o", "wide", "--sort-by", "score")
    assert nodes[-2:] == ["l40s-00", "l40s-01"]


@pytest.mark.parametrize(
    "words",
    [
        ("nodes", *WHERE),
        ("pods", "-A", *WHERE),
        ("waiting", "-A", *WHERE),
        IDLE,
        ("check", "examples/workloads/vllm.yaml", *CHECK[2:]),
    ],
)
def test_on_a_usual_terminal_a_header_is_one_line(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = ["", *asked(main, *words).stdout.splitlines()]
    (header,) = (n for n, line in enumerate(lines) if line.startswith(("node  ", "pod  ")))
    assert lines[header - 1] == ""
    assert "  0-3 | 4-7\n" in asked(main, *CHECK).stdout, "sets of GPUs stay on their line"


@pytest.mark.parametrize("command", ["nodes", "waiting", "pods", "idle"])
def test_a_column_that_is_not_there(command: str) -> None:
    done = asked(main, command, *WHERE, "--sort-by=-colour-x")
    refused(done, "--sort-by: allowed are ", "not '-colour-x'")


def test_check_refuses_an_unknown_column_in_every_form() -> None:
    for form in ("table", "json"):
        done = asked(main, *CHECK, "--sort-by", "nothing", "-o", form)
        refused(done, "--sort-by: allowed are node, verdict, score")


@pytest.mark.parametrize("command", ["waiting", "pods", "idle"])
def test_without_headers_no_row_is_no_line(command: str) -> None:
    nothing = (command, "-n", "nobody", *WHERE)
    assert "no pod in the namespace nobody" in asked(main, *nothing).stdout
    assert asked(main, *nothing, "--no-headers").stdout == ""


def test_only_rows_without_headers() -> None:
    assert len(first_words("nodes", *WHERE)) == 5
    assert first_words("waiting", "-A", *WHERE) == ["team-a/pretrain", "team-a/tune"]
    assert len(first_words(*IDLE)) == len(json.loads(asked(main, *IDLE, "-ojson").stdout)["idle"])
    assert len(first_words(*CHECK, "-o", "wide")) == 8


@pytest.mark.parametrize("words", [CHECK, WHY, UNBLOCK], ids=lambda words: words[0])
def test_answers_about_a_pod_in_every_form(words: tuple[str, ...]) -> None:
    table = asked(main, *words)
    assert asked(main, *words, "-o", "text") == table, "as it was called before"
    found = json.loads(asked(main, *words, "-o", "json").stdout)
    assert yaml.safe_load(asked(main, *words, "-o", "yaml").stdout) == found
    refused(asked(main, *words, "-o", "xml"), "allowed are table, wide, json, yaml, name, not")


def test_names_of_an_answer_about_a_pod() -> None:
    best = asked(main, *CHECK, "-o", "name").stdout.split()
    assert len(best) == 8
    assert best[0] in {"node/h100-00", "node/h100-01", "node/v100-00", "node/v100-01"}
    assert asked(main, *WHY, "-o", "name").stdout == "pod/train\n"
    plan = json.loads(asked(main, *UNBLOCK, "-o", "json").stdout)["plan"]
    named = asked(main, *UNBLOCK, "-o", "name").stdout.split()
    assert named == [f"pod/{step['pod']}" for step in plan["steps"]]
    assert named
