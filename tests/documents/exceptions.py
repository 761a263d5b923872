"""The one list of what a test does not run as the documents say it, and why.

A statement of a document that is in none of these tables is run as it stands: without a cluster by
``tests/documents/test_commands.py``, with one by ``tests/e2e/test_documents.py``. An entry that no
statement needs any more fails ``tests/documents/test_blocks.py``.
"""

import re
from dataclasses import dataclass

from tests.documents.blocks import Block


@dataclass(frozen=True, slots=True)
class NotRun:
    """Statements that begin with ``pattern`` (of pages that end with ``page``) are not run."""

    pattern: str
    reason: str
    page: str = ""

    def is_for(self, block: Block, statement: str) -> bool:
        """Whether the statement is such a one."""
        return block.page.endswith(self.page) and bool(re.match(self.pattern, statement))


@dataclass(frozen=True, slots=True)
class Stand:
    """What is written in the place of ``pattern``, so that a statement runs here in seconds."""

    pattern: str
    instead: str
    reason: str
    page: str = ""

    def applied(self, block: Block, statement: str) -> str:
        """The statement as it is run."""
        if not block.page.endswith(self.page):
            return statement
        return re.sub(self.pattern, self.instead, statement)


NOT_RUN = (
    NotRun(r"make ", "runs the tests, or installs the packages from the network; CI does both"),
    NotRun(
        r"kind ", "needs Docker; tests/e2e/test_play.py runs the page on a control plane of ours"
    ),
    NotRun(
        r"gpu-topology play",
        "runs until Ctrl-C; tests/e2e/test_play.py starts it",
    ),
    NotRun(
        r"(ssh .*\n.*)?gpu-topology doctor",
        "reads files of a control-plane node; tests/e2e/test_doctor.py runs it on an installation",
    ),
    NotRun(r"kubectl krew install", "downloads; tests/e2e/test_krew.py installs it from a file"),
    NotRun(r"kubectl .*rollout status", "no pod becomes ready where no kubelet runs it"),
    NotRun(
        r"(curl -fL|echo) .*/traces/",
        "fetches from GitHub; tests/benchmarks/simulation/test_sources.py checks the SHA-256",
    ),
    NotRun(
        r"helm ",
        "would take the extender of the other pages away; tests/e2e/test_chart.py renders it",
        page="docs/install/is-it-worth-it.md",
    ),
    NotRun(
        r"kubectl ",
        "tests/e2e/test_howto.py runs it on a cluster of its own, and looks at what happens",
        page="docs/tasks/nodes.md",
    ),
    NotRun(
        r"(kubectl )?\S*gpu-topology .*--forward|kubectl gpu-topology map --open",
        "goes through a kubelet: tests/e2e/test_forwarding.py asks so",
    ),
    NotRun(
        r"kubectl .*port-forward",
        "goes through a kubelet; the extender's own admin port stands in for port 8889",
    ),
    NotRun(
        r"kubectl apply -f manifests/samples/gangs/podgroup.yaml",
        "needs an API server of 1.37; tests/e2e/test_gang_cycle.py applies it there",
    ),
    NotRun(
        r"kubectl apply -f manifests/samples/gangs/kueue-job.yaml",
        "needs Kueue; tests/e2e/test_kueue.py applies it there",
    ),
)

# Simulations in seconds instead of minutes.
SMALLER = (
    Stand(r"--count \d+", "--count 12", "fewer jobs"),
    Stand(r"--seeds \d+", "--seeds 1", "one seed"),
    Stand(r"(benchmarks simulate)(?!.*--count)", r"\1 --count 12", "fewer jobs"),
    Stand(r"(benchmarks simulate)(?!.*--seeds)", r"\1 --seeds 1", "one seed"),
    Stand(r"(benchmarks simulate)", r"\1 --workers 1", "the tests share the cores"),
    Stand(r"--load 0.7 --load 0.9( --load 1.1)?", "--load 0.9", "one load"),
    Stand(r"dgx1-v100=16", "dgx1-v100=2", "a smaller cluster"),
    Stand(r"a100-pcie-4-bridged=32", "a100-pcie-4-bridged=4", "a smaller cluster"),
    Stand(r"(benchmarks compare)", r"\1 --seeds 1", "one order"),
)

# Placeholders, and what is elsewhere on this machine.
ELSEWHERE = (
    Stand(
        r"--root /host --tls /host/root",
        r'--root "$NODE" --tls ..',
        "a folder stands for the node's /",
    ),
    Stand(r"node NODE ", "node train-07 ", "a node that there is"),
    Stand(r"http://localhost:8889", "http://localhost:$ADMIN_PORT", "the extender's own port"),
)

STANDS = (*SMALLER, *ELSEWHERE)

# Statements that end with another exit status than 0.
EXITS = (
    (r"kubectl gpu-topology why pair-nvlink", 0, "the pod is placed"),
    (r"kubectl gpu-topology why ", 1, "the pod waits"),
    (r"gpu-topology why team-a/train ", 1, "the pod waits"),
)


def why_not_run(block: Block, statement: str) -> str:
    """The reason why a statement is not run; empty where it is."""
    return next((no.reason for no in NOT_RUN if no.is_for(block, statement)), "")


def as_run(block: Block, statement: str) -> str:
    """The statement as it is run here."""
    for stand in STANDS:
        statement = stand.applied(block, statement)
    return statement


def status(statement: str) -> int:
    """The exit status that a statement of a page ends with."""
    return next((code for pattern, code, _ in EXITS if re.match(pattern, statement)), 0)
