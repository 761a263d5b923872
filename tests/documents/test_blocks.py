"""Every block of the documents is of a kind that a test runs or checks."""

import re
from collections import Counter

import pytest

from tests.documents import exceptions
from tests.documents.blocks import (
    FENCE,
    LANGUAGES,
    PAGES,
    Block,
    blocks,
    blocks_of,
    shell_blocks,
    statements,
)

EVERY = [(block, statement) for block in shell_blocks() for statement in statements(block)]


def test_every_block_says_what_it_is() -> None:
    assert [str(block) for block in blocks() if block.language not in LANGUAGES] == []


def test_no_text_is_a_command() -> None:
    """A block that no test runs would hide mistakes."""
    begins = r"(\$ |kubectl |helm |make |(\.venv/bin/)?(gpu-topology|python) )"
    texts = [b for b in blocks() if b.language == "text" and re.match(begins, b.text)]
    assert [str(block) for block in texts] == []


def test_a_table_is_whole() -> None:
    """A blank line ends a table: the rows behind it are text, each a line of bars."""
    tables = 0
    for page in PAGES:
        text = FENCE.sub("", page.read_text())
        for part in re.findall(r"(?:^ *\|.*\n)+", text, re.MULTILINE):
            rows: list[str] = part.splitlines()
            rule = rows[1] if rows[1:] else ""
            assert re.fullmatch(r" *\|( *:?-+:? *\|)+", rule), f"{page.name}: {rows[0]}"
            columns = rule.count("|")
            for row in rows:
                assert len(re.findall(r"(?<!\\)\|", row)) == columns, f"{page.name}: {row}"
            tables += 1
    assert tables


def test_nothing_stands_behind_a_command_that_ends_with_ctrl_c() -> None:
    """It would have to be typed in another terminal, which the block does not say."""
    runs = r"(gpu-topology (extender|play|agent(?!.*--once))|kubectl .*port-forward).*"
    for block in shell_blocks():
        for statement in statements(block)[:-1]:
            stays = re.fullmatch(runs, statement.partition("  #")[0].rstrip())
            assert not stays or statement.rstrip().endswith("&"), f"{block}: {statement}"


def test_every_exception_is_needed() -> None:
    for entry in exceptions.NOT_RUN:
        assert any(entry.is_for(b, s) for b, s in EVERY), entry
    for pattern, _, _ in exceptions.EXITS:
        assert any(re.match(pattern, s) for _, s in EVERY), pattern


def test_every_stand_in_is_needed() -> None:
    used: Counter[exceptions.Stand] = Counter()
    for block, statement in EVERY:
        for stand in exceptions.STANDS:
            changed = stand.applied(block, statement)
            used[stand] += changed != statement
            statement = changed
    assert [stand for stand in exceptions.STANDS if not used[stand]] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a  # words\n\n# nothing\nb | c\n", ["a  # words", "b | c"]),
        ("a \\\n  b\nc\n", ["a \\\n  b", "c"]),
        ("cat <<EOF\nx: 1\nEOF\nd\n", ["cat <<EOF\nx: 1\nEOF", "d"]),
        ("for x in y; do\n  z\ndone\n", ["for x in y; do\n  z\ndone"]),
        ("a 'b\nc'\n", ["a 'b\nc'"]),
    ],
    ids=["comments", "continued", "here-document", "loop", "quoted"],
)
def test_statements(text: str, found: list[str]) -> None:
    assert statements(Block("page", 1, "sh", text)) == found


def test_a_console_has_statements_and_what_they_print() -> None:
    assert statements(Block("page", 1, "console", "$ a b\nprinted\n$ c\n")) == ["a b", "c"]


def test_a_statement_without_an_end_is_reported() -> None:
    with pytest.raises(ValueError, match=r"page:1: a statement has no end: for x in y; do"):
        statements(Block("page", 1, "sh", "for x in y; do\n  z\n"))


def test_blocks_in_lists_lose_their_indentation() -> None:
    (block,) = blocks_of("1. Do\n\n   ```yaml\n   a:\n     b: 1\n   ```\n", "page")
    assert (block.line, block.language, block.text) == (3, "yaml", "a:\n  b: 1\n")
