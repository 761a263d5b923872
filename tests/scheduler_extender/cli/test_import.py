"""``gpu-topology import``: what people save of a machine, and what ``check`` then answers."""

import json
from pathlib import Path

import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import ROOT, Done, asked, refused

PAIR = ROOT / "manifests" / "samples" / "pair-nvlink.yaml"

# README's first machine: four A100, bridged in pairs 0-1 and 2-3.
BRIDGED = """\
	GPU0	GPU1	GPU2	GPU3	CPU Affinity	NUMA Affinity	GPU NUMA ID
GPU0	 X 	NV12	SYS	SYS	0-31	0		N/A
GPU1	NV12	 X 	SYS	SYS	0-31	0		N/A
GPU2	SYS	SYS	 X 	NV12	32-63	1		N/A
GPU3	SYS	SYS	NV12	 X 	32-63	1		N/A
"""
PRODUCT = ("--product", "NVIDIA A100 80GB PCIe")


def run(*words: str | Path, given: str | bytes = "") -> Done:
    return asked(main, *words, given=given)


def imported(*words: str, text: str = BRIDGED) -> tuple[dict[str, object], str]:
    """The object on stdout and what stderr says."""
    done = run("import", "-", "--node", "train-01", *PRODUCT, *words, given=text)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout), done.stderr


def verdict(record: object, held: list[int], cluster: Path) -> tuple[str, list[list[int]], object]:
    """What ``check`` says of the pair while those GPUs are held: verdict, outcomes, exit code."""
    assert isinstance(record, dict)
    ids = [gpu["uuid"] for gpu in record["spec"]["devices"] if gpu["index"] in held]
    pod = {"podUID": "u", "namespace": "team-a", "pod": "train", "container": "main"}
    record["status"] = {
        "allocations": [{**pod, "resource": "nvidia.com/gpu", "deviceIds": ids}] if ids else []
    }
    cluster.write_text(yaml.safe_dump(record))
    done = run("check", PAIR, "--cluster", cluster, "--output", "json")
    (node,) = json.loads(done.stdout)["nodes"]
    return node["verdict"], node["outcomes"], done.returncode


@pytest.mark.parametrize(
    ("words", "held", "expected"),
    [
        # The rows of README's table, and the empty node.
        pytest.param((), [0], ("guaranteed", [[2, 3]], 0), id="three free"),
        pytest.param((), [0, 3], ("not-now", [[1, 2]], 1), id="two free, not linked"),
        pytest.param((), [], ("guaranteed", [[0, 1], [2, 3]], 0), id="all free"),
        pytest.param(
            ("--allocator", "any"),
            [0],
            ("not-guaranteed", [[1, 2], [1, 3], [2, 3]], 1),
            id="a plugin that is not modelled",
        ),
        pytest.param(
            ("--allocator", "best-effort"), [0], ("guaranteed", [[2, 3]], 0), id="said so"
        ),
    ],
)
def test_import_then_check_gives_what_the_readme_promises(
    tmp_path: Path, words: tuple[str, ...], held: list[int], expected: object
) -> None:
    record, _ = imported(*words)
    assert verdict(record, held, tmp_path / "train-01.yaml") == expected


@pytest.mark.parametrize("policy", ["best-effort", "distributed", "packed", "any"])
def test_the_allocator_is_written(policy: str) -> None:
    record, errors = imported("--allocator", policy)
    assert record["spec"]["allocator"]["policy"] == policy  # type: ignore[index]
    assert "is assumed" not in errors


def test_the_default_allocator_is_reported() -> None:
    record, errors = imported()
    assert record["spec"]["allocator"]["policy"] == "best-effort"  # type: ignore[index]
    assert "standard input: allocator: best-effort is assumed, NVIDIA's unmodified plugin" in errors
    assert "--allocator" in errors


@pytest.mark.parametrize(
    ("words", "errors"),
    [
        (["--allocator", "exact"], "--allocator: allowed are best-effort, distributed, packed, "),
        (["--memory=-5"], "--memory: allowed are quantities of bytes from 64Mi, such as 40Gi"),
        (["--memory", "24564"], "--memory: that is 24564 bytes; write 24564Mi"),
        (["--memory", "8Ei"], "--memory: allowed are at most 2^63 - 1 bytes"),
        (["--node", "../x"], "--node: allowed are names of a-z, 0-9, - and ., at most 253"),
        (["--node", "a" * 254], "--node: allowed are names of a-z, 0-9, - and ., at most 253"),
        (["--product", "A100\x07"], "product 'A100\\x07': allowed are 253 printable characters"),
        (["--product", "A" * 254], "allowed are 253 printable characters"),
    ],
)
def test_bad_arguments_are_one_line(words: list[str], errors: str) -> None:
    done = run("import", "-", "--node", "train-01", *words, given=BRIDGED)
    refused(done, errors)


def test_a_file_that_powershell_wrote() -> None:
    for text in (BRIDGED.encode("utf-16"), BRIDGED.encode("utf-8-sig")):
        done = run("import", "-", "--node", "train-01", *PRODUCT, given=text)
        assert done.returncode == 0, done.stderr
        assert len(yaml.safe_load(done.stdout)["spec"]["devices"]) == 4


@pytest.mark.parametrize(
    ("file", "errors"),
    [
        ("/dev/zero", "/dev/zero: larger than 4,194,304 bytes"),
        ("/nope", "/nope: No such file or directory"),
        ("/", "/: Is a directory"),
    ],
)
def test_files_that_cannot_be_read(file: str, errors: str) -> None:
    done = run("import", file, "--node", "train-01")
    assert (done.returncode, done.stderr) == (2, f"error: {errors}\n")


def test_bytes_that_are_no_text() -> None:
    done = run("import", "-", "--node", "train-01", given=b"GPU0 \xff\x00\x81")
    refused(done, "not UTF-8 text")
