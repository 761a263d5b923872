"""Figures as people say them."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.figures.simulated import Parameters

# Seconds of a unit, its name, and where the next one is better.
UNITS = ((1.0, "s", 120.0), (60.0, "min", 7200.0), (3600.0, "h", 4 * 86400.0), (86400.0, "d", 0.0))


def unit(longest: float) -> tuple[float, str]:
    """The unit for times up to so many seconds: how many seconds it has, and its name.

    >>> unit(90), unit(5400), unit(86400)
    ((1.0, 's'), (60.0, 'min'), (3600.0, 'h'))
    """
    for seconds, name, until in UNITS:
        if longest < until:
            return seconds, name
    return UNITS[-1][0], UNITS[-1][1]


def duration(seconds: float) -> str:
    """A time in its unit.

    >>> duration(0), duration(50.4), duration(5400), duration(12 * 86400)
    ('0 s', '50 s', '90 min', '12 d')
    """
    size, name = unit(seconds)
    value = seconds / size
    return f"{value:.1f} {name}" if 0 < value < 10 else f"{value:.0f} {name}"


def percent(share: float) -> str:
    """A share, never rounded up to all or down to nothing.

    >>> percent(1), percent(0.9996), percent(0.83), percent(0)
    ('100 %', '99.9 %', '83.0 %', '0 %')
    """
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    return f"{min(max(100 * share, 0.1), 99.9):.1f} %"


def among(words: Sequence[str]) -> str:
    """Words as a list in a sentence.

    >>> among(["a"]), among(["a", "b"]), among(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def several(count: int, thing: str) -> str:
    """A count and its noun.

    >>> several(1, "job"), several(2000, "job")
    ('1 job', '2,000 jobs')
    """
    return f"{count:,} {thing}" + ("s" if count != 1 else "")


def span(values: Sequence[float], form: str) -> str:
    """From the least to the most of them, or the one that they are.

    >>> span([2, 1], ".1f"), span([1.0, 1.01], ".1f")
    ('1.0 to 2.0', '1.0')
    """
    least, most = f"{min(values):{form}}", f"{max(values):{form}}"
    return least if least == most else f"{least} to {most}"


def ends(words: Sequence[str]) -> str:
    """The first and the last of sorted words, or the one that they are.

    >>> ends(["81 %", "90 %", "100 %"]), ends(["100 %", "100 %"])
    ('81 % to 100 %', '100 %')
    """
    return words[0] if words[0] == words[-1] else f"{words[0]} to {words[-1]}"


def signed(value: float) -> str:
    """Points more or less, with a sign as wide as a figure.

    >>> signed(0.126)
    '+0.13'
    """
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


def load(value: float | None) -> str:
    """A load in words.

    >>> load(0.9), load(None)
    ('load 0.9', 'arrivals as they are')
    """
    return "arrivals as they are" if value is None else f"load {value:g}"


def seeds(given: Sequence[int]) -> str:
    """Seeds in words.

    >>> seeds([1, 2, 3]), seeds([7]), seeds([42, 7])
    ('1 to 3', '7', '42, 7')
    """
    if len(given) > 1 and list(given) == list(range(given[0], given[0] + len(given))):
        return f"{given[0]} to {given[-1]}"
    return ", ".join(map(str, given))


def simulate(given: Parameters) -> str:
    """The command that plays a sweep again, every option said. Seeds are counted from 1."""
    workload, rules = given.workload, given.rules
    speed = rules.speed
    words = ["simulate"]
    words += _each("--cluster", given.clusters)
    words += _each("--add", given.adds)
    words += ["--jobs", workload.source, "--count", str(workload.count or 0)]
    words += _each("--load", [repr(load or 0) for load in given.loads])
    words += _each("--policy", given.policies)
    words += ["--seeds", str(len(given.seeds)), "--queue", rules.queue]
    words += ["--gang" if rules.gang else "--no-gang", "--demand", workload.demand]
    if workload.pod_gpus is not None:
        words += ["--pod-gpus", str(workload.pod_gpus)]
    words += ["--communication", repr(speed.communication), "--full-speed", repr(speed.full)]
    words += ["--network", repr(speed.network)]
    return _command(words)


def _each(flag: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _command(words: Sequence[str]) -> str:
    return "python -m benchmarks " + shlex.join([*words, "--json", "figures.json"])


def flat(given: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Every parameter with its name, parameters within parameters behind a dot.

    >>> list(flat({"a": {"b": 1}, "c": ["x", None]}))
    [('a.b', '1'), ('c', 'x, –')]
    """
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        elif isinstance(value, (list, tuple)):
            yield f"{before}{name}", ", ".join(map(_shown, value)) or "–"
        else:
            yield f"{before}{name}", _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)
