"""Commands of the documents that need no cluster end well and print what the pages show."""

import shutil
from itertools import groupby
from pathlib import Path

import pytest

from tests import recorded
from tests.documents.blocks import ROOT, Block, following, shell_blocks
from tests.documents.running import Ran, checkout, run, tools
from tests.programs import free_port

ALONE = [block for block in shell_blocks() if not block.asks_a_cluster]
BY_PAGE = {page: list(found) for page, found in groupby(ALONE, key=lambda block: block.page)}

NODE = """\
GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-00000000-0000-0000-0000-000000000000)
GPU 1: NVIDIA A100 80GB PCIe (UUID: GPU-00000000-0000-0000-0000-000000000001)
"""
MATRIX = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\t0-15\t0\t\tN/A
GPU1\tNV12\t X \t0-15\t0\t\tN/A
"""
# Two GPUs behind one bridge, as nvidia-smi shows them.
NVIDIA_SMI = f"""#!/bin/sh
case "$*" in
-L) cat <<'EOF'
{NODE}EOF
;;
"topo -m") cat <<'EOF'
{MATRIX}EOF
;;
*) echo "not known here: $*" >&2; exit 2 ;;
esac
"""


# Pages with simulations, which take long.
LONG = ("docs/reference/commands.md", "docs/evidence/results.md", "docs/tasks/simulate.md")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.long] if page in LONG else []) for page in BY_PAGE],
)
def test_the_commands_of_a_page(page: str, tmp_path: Path) -> None:
    here = checkout(tmp_path)
    # What a reader has already: a snapshot, the cluster of `make run`, jobs, a machine's text.
    shutil.copy(ROOT / "examples" / "clusters" / "mixed.yaml", here / "now.yaml")
    (here / "out").mkdir(exist_ok=True)
    shutil.copy(ROOT / "examples" / "clusters" / "where.yaml", here / "out" / "cluster.yaml")
    shutil.copy(ROOT / "examples" / "simulation" / "jobs.jsonl", here / "week.jsonl")
    (here / "node.txt").write_text(NODE + MATRIX)
    programs = tools(tmp_path / "bin", **{"nvidia-smi": NVIDIA_SMI})
    given = {
        "PORT": str(free_port()),
        "ADMIN_PORT": str(free_port()),
        "COLUMNS": "80",  # what pages show is as wide as a terminal at least
        "GPU_TOPOLOGY_SHARED": str(recorded.SHARED),
    }
    for ran in run(BY_PAGE[page], here, [programs], given):
        if "TraceMissingError" in ran.stderr or "set GPU_TOPOLOGY_SHARED" in ran.stderr:
            assert recorded.absence("traces"), str(ran)
            continue
        assert ran.is_well(), str(ran)
        assert ran.stdout == (shown(ran) or ran.stdout), str(ran)


def shown(ran: Ran) -> str:
    """What the page shows that a command prints: the text that stands right behind it."""
    block: Block | None = following(ran.block)
    if (
        block is None
        or block.language != "text"
        or not ran.block.text.endswith(f"{ran.statement}\n")
    ):
        return ""
    lines = (ROOT / ran.block.page).read_text().splitlines()
    between = lines[ran.block.line + ran.block.text.count("\n") + 1 : block.line - 1]
    return "" if any(between) else block.text
