"""The names of templates: legal, and never one for two requests."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_extender.annotations import KEYS, PREFIX
from scheduler_extender.claims import ESCAPED, MATTER, MOST, count_of, template_name

ALLOWED = string.ascii_lowercase + string.digits + ESCAPED[1:]
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
values = st.dictionaries(
    st.sampled_from(MATTER), st.text(st.sampled_from(ALLOWED), min_size=1, max_size=12), max_size=4
)
any_values = st.dictionaries(st.sampled_from([*KEYS, "group"]), st.text(max_size=30), max_size=5)


def named(count: int, asked: dict[str, str]) -> str | None:
    return template_name(count, {PREFIX + key: value for key, value in asked.items()})


def read(name: str) -> tuple[int, dict[str, str]]:
    """What a name was made of."""
    first, *parts = name.removeprefix("gpu-topology-").split(".")
    read = [
        re.sub("z([0-9]{2})", lambda found: ESCAPED[int(found[1]) - 10], part)
        for part in parts[1::2]
    ]
    return int(first), dict(zip(parts[::2], read, strict=True))


@given(st.integers(1, 99), values)
def test_a_name_says_all_that_it_is_made_of(count: int, asked: dict[str, str]) -> None:
    """So no two requests have one name."""
    name = named(count, asked)
    assert name is not None
    assert NAME.fullmatch(name)
    assert read(name) == (count, asked)
    assert count_of(name) == count


@given(st.integers(1, 99), any_values)
def test_a_name_is_legal_or_there_is_none(count: int, asked: dict[str, str]) -> None:
    name = named(count, asked)
    assert name is None or (NAME.fullmatch(name) and len(name) <= MOST)


@pytest.mark.parametrize(
    "value", ["", "nvlink\n", "\uff4evlink", "\u212a80", "a;b", "a\x00", "a" * 260]
)
def test_no_name_for_what_no_name_can_say(value: str) -> None:
    assert named(2, {"link": value}) is None


def test_the_longest_name() -> None:
    room = MOST - len("gpu-topology-2.link.a.gpu-model.")
    assert named(2, {"link": "a", "gpu-model": "a" * 200}) is not None
    assert named(2, {"link": "a", "gpu-model": "a" * 201}) is None
    assert named(2, {"link": "a", "gpu-model": "A" * (room // 3)}) is not None
    assert named(2, {"link": "a", "gpu-model": "A" * (room // 3 + 1)}) is None


@pytest.mark.parametrize(
    "name", ["", "gpu-topology-", "gpu-topology-0", "gpu-topology-100", "gpu-topology-x.link.a",
             "gpu-topology-2-mine", "gpu-topology-٣", "my-gpu-topology-2"]
)  # fmt: skip
def test_other_names(name: str) -> None:
    assert count_of(name) is None
