"""Texts and JSON values, changed at random. The same generator makes the same changes."""

import copy
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

CHANGES = (1, 1, 1, 2, 3, 8)  # how many changes one input sees: a single one gets deepest
MOST_REPEATS = 300
# Small and large, near a limit and far from any; words of ours where they do not belong.
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        63,
        64,
        1023,
        1024,
        1025,
        4096,
        2**31,
        2**63 - 1,
        2**63,
        -(2**63),
    ),
    *(2**64, 10**30, 0.5, -0.0, 1e300, 5e-324, "", " ", "0", "1", "-1", "1e9", "٣", "x", "true"),
    *("1Gi", "40Gi", "1e400", "NaN", "0-3", "0-4095", "3-1", "10 21", "nvlink", "ring", "pairwise"),
    *("nvidia.com/gpu", "GPU-0", "GPU-0::1", "node", "any", "best-effort", "single-numa-node"),
    *(
        "\x00",
        "\n",
        "\u2028",
        "é",
        "\U0001f680",
        "../..",
        "a" * 300,
        "9" * 5000,
        "," * 1100,
        "*" * 40,
    ),
    *([], {}, [[]], [{}], {"": ""}, {"a": {"b": []}}, [0, 0], ["a", "a"], [None]),
)


def changed_text(rng: Random, text: str, words: Sequence[str]) -> str:
    """The text after some cuts, repeats, moves and words that do not belong there."""
    for _ in range(rng.choice(CHANGES)):
        a = rng.randint(0, len(text))
        b = min(len(text), a + rng.choice((1, 3, 20, 200)))
        match rng.randrange(7):
            case 0:
                text = text[:a] + text[b:]
            case 1:
                text = text[:b] + text[a:b] * rng.choice((1, 2, MOST_REPEATS)) + text[b:]
            case 2:
                text = text[:a] + rng.choice(words) + text[a:]
            case 3:
                text = text[:a] + rng.choice(words) + text[b:]
            case 4:
                lines = text.split("\n")
                i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
                lines[i], lines[j] = lines[j], lines[i]
                text = "\n".join(lines)
            case 5:
                text = (
                    text[:a]
                    + chr(rng.choice((rng.randrange(128), rng.randrange(0xD800))))
                    + text[b:]
                )
            case _:
                lines = text.split("\n")
                lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
                text = "\n".join(lines)
    return text


def changed_json(rng: Random, value: Any) -> Any:
    """The value after some of its parts were replaced, taken out, repeated or swapped."""
    found = [copy.deepcopy(value)]  # so that the whole is a part, too
    for _ in range(rng.choice(CHANGES)):
        holder, key = _place(rng, found)
        part = holder[key]
        match rng.randrange(7):
            case 0:
                holder[key] = copy.deepcopy(rng.choice(VALUES))
            case 1:  # of the same type, so that it is read on
                like = [value for value in VALUES if type(value) is type(part)]
                holder[key] = copy.deepcopy(rng.choice(like or VALUES))
            case 2 if holder is not found:
                del holder[key]
            case 3 if isinstance(part, list) and part:
                part.extend(
                    copy.deepcopy(rng.choice(part)) for _ in range(rng.choice((1, 2, MOST_REPEATS)))
                )
            case 4:
                other, name = _place(rng, found)
                holder[key] = copy.deepcopy(other[name])
            case _ if isinstance(part, dict):
                part[str(rng.choice(VALUES))[:300]] = copy.deepcopy(rng.choice(VALUES))
            case _:
                holder[key] = [part]
    return found[0]


def nudged_json(rng: Random, value: Any) -> Any:
    """The value after small changes, each of which may well be allowed: what contradicts itself
    only as a whole gets past the checks of single fields."""
    found = [copy.deepcopy(value)]
    leaves = list(_leaves(found, 0))
    for _ in range(rng.choice(CHANGES)):
        holder, key = rng.choice(leaves)
        if isinstance(holder, list) and key >= len(holder):
            continue  # it went with another change
        part = holder[key]
        if isinstance(part, bool):
            holder[key] = not part
        elif isinstance(part, int):
            holder[key] = rng.choice((part + 1, max(0, part - 1), rng.randrange(4), part * 2))
        elif isinstance(part, list):
            if part and rng.random() < 0.7:
                del part[rng.randrange(len(part))]
            elif part:
                part.append(copy.deepcopy(rng.choice(part)))
        elif isinstance(part, str):
            words = part.split(" ")
            holder[key] = rng.choice((" ".join(words[:-1]) or part, part + "0", part[:-1] or part))
    return found[0]


def _leaves(holder: Any, key: Any) -> Iterator[tuple[Any, Any]]:
    """Every place whose value is no mapping: texts, numbers, and lists as a whole."""
    part = holder[key]
    if isinstance(part, dict):
        for name in part:
            yield from _leaves(part, name)
        return
    yield holder, key
    if isinstance(part, list):
        for i in range(len(part)):
            yield from _leaves(part, i)


def _place(rng: Random, value: Any) -> tuple[Any, Any]:
    """A list or mapping somewhere in ``value``, and a key of it."""
    holder, key = value, 0
    while True:
        part = holder[key]
        keys = (
            list(part)
            if isinstance(part, dict)
            else range(len(part))
            if isinstance(part, list)
            else ()
        )
        if not keys or (holder is not value and rng.random() < 0.1):
            return holder, key
        holder, key = part, rng.choice(keys)


def json_text(value: Any) -> str:
    """The value as JSON."""
    return json.dumps(value, ensure_ascii=False)
