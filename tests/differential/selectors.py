"""Random selectors over random devices, as :mod:`scheduler_extender.kube.cel` reads them and as
kube-scheduler's own CEL does.

Most texts mix kinds of values, keys that are missing, and functions that we do not follow. A text
that the API server would not take counts for nothing.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from scheduler_extender.kube.cel import CelError, matches
from scheduler_extender.kube.draobjects import Device
from tests.differential.claims import DRIVER, NODE, Json
from tests.differential.nvidiaplugin import Answering

OWN = f'device.attributes["{DRIVER}"]'
COMMON = 'device.attributes["resource.kubernetes.io"]'
MEMORY = f'device.capacity["{DRIVER}"].memory'
VALUES: tuple[Json, ...] = (
    *({"string": text} for text in ("abc", "1", "", "NVIDIA A100-SXM4-40GB", "ab+c")),
    *({"int": number} for number in (1, -2, 0)),
    *({"bool": flag} for flag in (True, False)),
    *({"version": text} for text in ("1.2.3", "550.90.7", "1.2.3-rc.1", "1.2.3-rc.10", "1.2.3+b")),
)
KNOWN = (f"{OWN}.a", f"{OWN}.b", f'{OWN}["a"]', f"{COMMON}.c", f"{OWN}.nothing", f"{COMMON}.y")
LITERALS = ("1", "-2", "0", "007", '"abc"', "'1'", '""', '"b"', "true", "false", "device.driver")
WHOLE = (f"{OWN}.a", f"!{OWN}.b", "device.allowMultipleAllocations", f'{OWN}.a.matches("a")')
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
QUANTITIES = ("1", "1Gi", "1024Mi", "500m", "80Gi")
PATTERNS = (
    *("^.*a100.*$", "^nvidia", "(?i)a100", "[a-c]+$", "^(abc|1)?$", "b|[+]", "a{2,}", r"", "^$"),
    *("A100-(SXM|PCIE)[0-9]", "[[:alpha:]]{3}", "(a+)+$", ".", "a.c", "x*", "(", "[z-a]", "a**"),
)
TEXTS = ("1.2.3", "v1.2", "1", "01.2.3", "1.2.3-rc.2", "1.2.3-01", "550.90.7+x", "", "1.x.0", "v02")


@dataclass(slots=True)
class SelectorTally:
    """How the texts were read."""

    alike: int = 0
    unpredicted: int = 0  # there is an answer, and we do not follow the text
    found: list[str] = field(default_factory=list)  # we say something else

    @property
    def line(self) -> str:
        """One line for people."""
        return (
            f"selectors: {self.alike} answered alike, nothing said of {self.unpredicted}, "
            f"{len(self.found)} answered otherwise"
        )


def random_device(rng: Random) -> Json:
    """A device with some attributes of any kind."""
    names = [name for name in ("a", "b", "resource.kubernetes.io/c") if rng.random() < 0.8]
    memory = {"memory": {"value": rng.choice(QUANTITIES)}} if rng.random() < 0.8 else {}
    attributes = {name: rng.choice(VALUES) for name in names}
    return {"name": "gpu", "attributes": attributes, "capacity": memory}


def random_selector(rng: Random, depth: int = 0) -> str:
    """A text that may be true or false."""

    def inside() -> str:
        return random_selector(rng, depth + 1)

    def value() -> str:
        compared = f'{MEMORY}.compareTo(quantity("{rng.choice(QUANTITIES)}"))'
        some = [rng.choice(KNOWN), rng.choice(KNOWN), rng.choice(LITERALS), compared]
        if depth < 3 and rng.random() < 0.2:
            some = [
                f"({rng.choice(KNOWN)} {rng.choice('+-')} {rng.choice(LITERALS)})",
                f"({inside()} ? {rng.choice(KNOWN)} : {rng.choice(LITERALS)})",
                f"{rng.choice(KNOWN)}.{rng.choice(('lowerAscii', 'upperAscii', 'size'))}()",
                f"{rng.choice(KNOWN)}.{rng.choice(('major', 'minor', 'patch'))}()",
                f"size({rng.choice(KNOWN)})",
                version(),
            ]
        return rng.choice(some)

    def version() -> str:
        return rng.choice((f'semver("{rng.choice(TEXTS)}")', f"semver({OWN}.a, true)", f"{OWN}.b"))

    def matched() -> str:
        lower = rng.choice(("", ".lowerAscii()"))
        pattern = f"'{rng.choice(PATTERNS)}'" if rng.random() < 0.9 else value()
        return f"{rng.choice((*KNOWN, 'device.driver'))}{lower}.matches({pattern})"

    join = rng.choice((" && ", " || ", "&&", "||"))
    nested: tuple[Callable[[], str], ...] = (
        lambda: join.join(inside() for _ in range(rng.randint(2, 3))),
        lambda: f"!({inside()})",
        lambda: f"({inside()}) == ({inside()})",
        lambda: f"{inside()} ? {inside()} : {inside()}",
    )
    plain: tuple[Callable[[], str], ...] = (
        lambda: f"{value()} {rng.choice(COMPARISONS)} {value()}",
        lambda: f"{value()} {rng.choice(COMPARISONS)} {value()}",
        lambda: f"{value()} in [{', '.join(value() for _ in range(rng.randint(0, 3)))}]",
        lambda: f'"{rng.choice("abz")}" in {OWN}',
        lambda: f"has({OWN}.{rng.choice('abz')})",
        lambda: f"{value()}.{rng.choice(('startsWith', 'endsWith', 'contains'))}({value()})",
        lambda: f'{MEMORY}.{rng.choice(("isGreaterThan", "isLessThan"))}(quantity("1Gi"))',
        lambda: f'{MEMORY} == quantity("{rng.choice(QUANTITIES)}")',
        lambda: rng.choice(WHOLE),
        matched,
        lambda: f"{version()}.{rng.choice(('isGreaterThan', 'isLessThan'))}({version()})",
        lambda: f"{version()}.compareTo({version()}) {rng.choice(COMPARISONS)} {value()}",
        lambda: f"{version()} {rng.choice(('==', '!='))} {version()}",
        lambda: f'isSemver("{rng.choice(TEXTS)}"{rng.choice(("", ", true", ", false"))})',
    )
    return rng.choice(nested if depth < 3 and rng.random() < 0.35 else plain)()


def compare_selector(rng: Random, allocator: Answering, tally: SelectorTally) -> None:
    """Ask both about one text and one device."""
    device, text = random_device(rng), random_selector(rng)
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [device]}
    wanted = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
    wanted["selectors"] = [{"cel": {"expression": text}}]
    answer: Any = allocator.answer(
        {
            "node": NODE,
            "slices": [{"metadata": {"name": "s"}, "spec": spec}],
            "classes": [{"metadata": {"name": "any"}, "spec": {}}],
            "claims": [{"requests": [{"name": "r", "exactly": wanted}]}],
        }
    )
    error = answer.get("error", "")
    if "compile error" in error:
        return
    try:
        known = msgspec.json.decode(json.dumps(device), type=Device).known(DRIVER)
        message = str(matches(text, known))
    except CelError:
        message = "no answer"
    real = "no answer" if error else str(bool(answer["devices"]))
    if message == real:
        tally.alike += 1
    elif message == "no answer":
        tally.unpredicted += 1
    else:
        tally.found.append(f"{real} ({error}), we say {message}: {text}, over {device}")


def run_selectors(questions: int, seed: int, program: Path) -> SelectorTally:
    """So many random texts."""
    tally = SelectorTally()
    with Answering(str(program)) as allocator:
        for number in range(questions):
            compare_selector(Random(seed + number), allocator, tally)
    return tally
