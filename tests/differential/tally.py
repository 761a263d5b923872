"""What came of many histories, by family."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.differential.play import Counterexample, Played


@dataclass(slots=True)
class Tally:
    """Sums over histories of one family."""

    histories: int = 0
    admissions: int = 0
    promised: int = 0
    decided: int = 0
    single: int = 0
    # Counterexamples by kind; those that no report can have shown yet are counted apart.
    found: Counter[str] = field(default_factory=Counter)

    def add(self, played: Played) -> None:
        """Count one history."""
        self.histories += 1
        self.admissions += played.admissions
        self.promised += played.promised
        self.decided += played.decided
        self.single += played.single
        self.found.update(_name(c) for c in played.found)

    def row(self, name: str) -> str:
        """One line for people."""
        sure = 100 * self.decided / max(1, self.admissions)
        single = 100 * self.single / max(1, self.admissions)
        wrong = ", ".join(f"{n} {kind}" for kind, n in sorted(self.found.items()))
        return f"{self.admissions:7} {self.promised:8} {sure:5.1f} % {single:5.1f} %  {name}" + (
            f": {wrong}" if wrong else ""
        )


HEADER = "admitted promised decided  single  family"


def _name(found: Counterexample) -> str:
    return f"{found.kind} (not reportable yet)" if found.unacknowledged else found.kind


class Table:
    """Tallies by family, and their sum."""

    def __init__(self) -> None:
        self.families: defaultdict[str, Tally] = defaultdict(Tally)
        self.whole = Tally()

    def add(self, played: Played) -> None:
        """Count one history."""
        self.families[played.family].add(played)
        self.whole.add(played)

    def lines(self) -> Iterable[str]:
        """The table for people, coarse families first."""
        yield HEADER
        coarse: defaultdict[str, Tally] = defaultdict(Tally)
        for name, tally in self.families.items():
            for part in _parts(name):
                into = coarse[part]
                into.histories += tally.histories
                into.admissions += tally.admissions
                into.promised += tally.promised
                into.decided += tally.decided
                into.single += tally.single
                into.found += tally.found
        for name in sorted(coarse):
            yield coarse[name].row(name)
        yield self.whole.row("everything")


def _parts(family: str) -> list[str]:
    """A family counts under its policy with its managers, and under each of its options."""
    words = family.split()
    return [f"{words[0]}, {words[-1]}", *words[1:-1]]
