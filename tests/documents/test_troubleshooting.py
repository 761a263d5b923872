"""The pages about symptoms and about messages have the messages that the program has."""

import ast
import re

import pytest

from scheduler_extender.kube import events
from tests.documents.blocks import ROOT
from tests.manifests.test_reasons import missing_pieces
from topology.agent.model import record
from topology.core.report import UNACCOUNTED_USE

SYMPTOMS = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text()
BOTH = f"{SYMPTOMS}\n{(ROOT / 'docs' / 'reference' / 'reasons.md').read_text()}"


def messages() -> list[str]:
    """Our messages: the code in first cells of tables, and in lists before the colon."""
    cells = re.findall(r"^\| (.*?) \| ", BOTH, re.MULTILINE)
    cells += re.findall(r"^\* ((?:`[^`]+`(?:, )?)+):", BOTH, re.MULTILINE)
    return [found for cell in cells for found in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("message", messages())
def test_the_program_says_it(message: str) -> None:
    assert missing_pieces(message) == []


def said_of_records() -> set[str]:
    """The reasons of a record's condition Ready that is not true, from the agent's source."""
    calls = [
        node
        for path in sorted((ROOT / "topology" / "agent").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    place = {"Problem": 0, "Condition": 2}
    return {
        argument.value
        for call in calls
        if (at := place.get(getattr(call.func, "id", ""))) is not None
        for argument in call.args[at : at + 1]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def said_in_events() -> set[str]:
    """The reasons of the Events that the extender writes."""
    written = (events.REASON, events.REFUSED, events.PLACED, events.WAITS, events.WOULD_REJECT)
    named = {v for k, v in vars(events).items() if k.isupper() and str(v).startswith("GPU")}
    assert named == set(written)
    return named


def test_the_reasons_of_the_agent_are_found() -> None:
    """Those of three files: what enumerates them sees all of them."""
    assert {"NvmlUnavailable", "UnknownDevices", "RecordRefused"} <= said_of_records()


@pytest.mark.parametrize("reason", sorted(said_of_records()))
def test_every_reason_of_a_record_has_a_row(reason: str) -> None:
    assert f"\n| `{reason}` | " in SYMPTOMS


@pytest.mark.parametrize("condition", [record.COMPLETE, UNACCOUNTED_USE])
def test_every_other_condition_is_explained(condition: str) -> None:
    assert f"`{condition}`" in SYMPTOMS


@pytest.mark.parametrize("reason", sorted(said_in_events()))
def test_every_event_has_a_row(reason: str) -> None:
    assert f"\n| `{reason}` " in BOTH


def test_a_message_that_the_program_never_prints_is_found() -> None:
    with pytest.raises(AssertionError):
        test_the_program_says_it("not enough spare GPUs")
