"""The label selector of ``-l``: what it selects, also in cluster files, and what is refused."""

from pathlib import Path

import pytest

from scheduler_extender.cli import main
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.labels import selector_of, selects
from tests.commands import asked

LABELS = {"pool": "a100", "zone.example.com/rack": "", "gpus": "8"}
MEET = [
    "pool=a100",
    "pool==a100",
    "pool = a100 , gpus=8",
    "pool in (b, a100)",
    "pool in(a100)",
    "pool notin (b,c),gpus>4",
    "pool!=b",
    "none!=b",
    "none notin (b)",
    "!none, pool",
    "zone.example.com/rack=",
    "zone.example.com/rack in ()",
    "gpus<9",
    "",
    " ",
]
DO_NOT = ["pool=b", "pool!=a100", "none", "!pool", "pool notin (a100)", "gpus>8", "none=", "In"]
BAD = [
    "=",
    "a=b=c",
    "a,",
    ",a",
    "a b",
    "a in b",
    "a in (b",
    "a=(",
    "!",
    "!!a",
    "a~b",
    "a;b",
    "inx (",
]


@pytest.mark.parametrize("text", MEET)
def test_what_is_selected(text: str) -> None:
    assert selects(selector_of(text), LABELS)


@pytest.mark.parametrize("text", DO_NOT)
def test_what_is_not_selected(text: str) -> None:
    assert not selects(selector_of(text), LABELS)


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(BadInputError, match=r"--selector: .* cannot be read from"):
        selector_of(text)


FILE = """
kind: MachineGroup
machine: a100-pcie-4-bridged
count: 1
namePrefix: {x}-
---
kind: Node
metadata: {{name: {x}-00, labels: {{pool: {x}}}}}
---
kind: Pod
metadata: {{name: {x}, namespace: default, uid: {x}, labels: {{pool: {x}}}}}
spec:
  containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: 9}}}}}}]
"""


@pytest.mark.parametrize(
    ("command", "name"), [("nodes", "node/a-00"), ("map", "node/a-00"), ("waiting", "pod/a")]
)
def test_cluster_files_are_selected_from(tmp_path: Path, command: str, name: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("---".join(FILE.format(x=x) for x in "ab"))
    done = asked(main, command, "-l", "pool=a", "--cluster", file, "-o", "name")
    assert (done.stdout, done.stderr) == (f"{name}\n", "")
