"""docs/troubleshooting.md has the messages that the program has, and every reason of a refusal."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from scheduler_extender.state import decision, groups
from scheduler_extender.verbs import filtering
from tests.documents.blocks import ROOT
from topology.core.placement import Rejection, rejections

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
VARIES = "…"
STATUSES = {"503"}
"""Numbers of HTTP, and no message."""


def messages() -> list[str]:
    """The messages of ours: what the first cells of the tables show as code."""
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    names = PAGE.partition("\n## ")[0].splitlines()
    cells = [row.split(" | ")[0] for row in rows if row not in names]
    heads = {"`/readyz`"}
    return [
        found
        for cell in cells
        for found in re.findall(r"`([^`]+)`", cell)
        if f"`{found}`" not in heads and found not in STATUSES
    ]


@cache
def texts() -> tuple[str, ...]:
    """Every text of the program; where a value is written into one, its pieces around that."""
    return tuple(
        node.value
        for package in ("topology", "scheduler_extender")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@pytest.mark.parametrize("message", messages())
def test_the_program_says_it(message: str) -> None:
    pieces = [piece.strip() for piece in message.split(VARIES) if piece.strip(" :,=()")]
    assert pieces, message
    missing = [piece for piece in pieces if not any(piece in text for text in texts())]
    assert missing == []


def constants() -> Iterator[Rejection]:
    """Reasons that the program has by name."""
    for module in (rejections, decision, groups, filtering):
        yield from (value for value in vars(module).values() if isinstance(value, Rejection))


def patterns() -> list[re.Pattern[str]]:
    """The messages as patterns, without those that are nearly all variable."""
    return [
        re.compile(".+".join(map(re.escape, message.split(VARIES))), re.DOTALL)
        for message in messages()
        if len(message.replace(VARIES, "").strip()) > 8
    ]


@pytest.mark.parametrize("reason", sorted({found.reason for found in constants()}))
def test_every_reason_is_on_the_page(reason: str) -> None:
    assert any(pattern.fullmatch(reason) for pattern in patterns()), reason


def test_a_message_that_nobody_says_is_found() -> None:
    with pytest.raises(AssertionError):
        test_the_program_says_it("not enough spare GPUs")
