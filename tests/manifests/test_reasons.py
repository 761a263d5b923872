"""docs/reference/reasons.md has every reason, and the messages that the program has."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import pytest

from manifests.reference.reasons import MEANINGS, MESSAGES, OTHERS, ROOT, VARIES, resolvable
from scheduler_extender.explain.wording import REASON_WORDS
from scheduler_extender.framework import awaited, claims, rule, rules, setrules
from scheduler_extender.kube import nodedevices
from scheduler_extender.state.groups import groups
from scheduler_extender.state.node.nodeinfo import unsaid
from topology.core.placement import Reason, Rejection, memory, rejections

TEXTS = [
    (reason, message)
    for reason, every in [*MESSAGES.items(), (Reason.OTHER, OTHERS)]
    for advice in every
    for message in advice.messages
]


def test_every_reason_has_words_and_messages() -> None:
    assert REASON_WORDS.keys() == set(Reason)
    assert MESSAGES.keys() == set(Reason) - {Reason.OTHER}
    assert MESSAGES.keys() > MEANINGS.keys()
    assert all(MESSAGES.values())


@pytest.fixture(scope="module")
def helps() -> Mapping[Reason, frozenset[bool]]:
    """Whether evictions can help, by reason."""
    return resolvable()


def test_the_source_has_rejections_of_every_reason(
    helps: Mapping[Reason, frozenset[bool]],
) -> None:
    assert helps.keys() == MESSAGES.keys()


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


def missing_pieces(message: str) -> list[str]:
    """The pieces of a message, between what varies, that the program nowhere says."""
    pieces = [piece.strip() for piece in message.split(VARIES) if piece.strip(" :,=()")]
    assert pieces, message
    return [piece for piece in pieces if not any(piece in text for text in texts())]


@pytest.mark.parametrize("message", sorted({message for _, message in TEXTS}))
def test_the_program_says_it(message: str) -> None:
    assert missing_pieces(message) == []


def test_a_message_that_the_program_does_not_say_is_found() -> None:
    assert missing_pieces("not enough spare GPUs: …") == ["not enough spare GPUs:"]


def constants() -> Iterator[Rejection]:
    """The rejections that the program has by name."""
    yield unsaid("a reason")
    ours = [
        import_module(f"{package.__name__}.{found.name}")
        for package in (rules, setrules)
        for found in iter_modules(package.__path__)
    ]
    for module in (rejections, memory, groups, claims, awaited, rule, *ours, nodedevices):
        yield from (value for value in vars(module).values() if isinstance(value, Rejection))


NAMED = sorted(set(constants()), key=lambda found: found.message)


@pytest.mark.parametrize("rejection", NAMED, ids=[found.message for found in NAMED])
def test_a_rejection_is_under_its_reason(
    rejection: Rejection, helps: Mapping[Reason, frozenset[bool]]
) -> None:
    patterns = [
        ".+".join(map(re.escape, message.split(VARIES)))
        for reason, message in TEXTS
        if reason is rejection.reason and len(message.replace(VARIES, "").strip()) > 8
    ]
    assert any(re.fullmatch(each, rejection.message) for each in patterns), rejection
    assert rejection.resolvable in helps[rejection.reason]
