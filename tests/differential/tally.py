"""What came of many histories, by family."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from tests.differential.play import Played

SUMS = ("admissions", "promised", "decided", "single")  # the fields of `Played` that are added up
HEADER = "admitted promised decided  single  family"


class Table:
    """By family, the sums of the histories' fields, and how often each kind of counterexample came.

    Counterexamples that no report can have shown yet are counted apart.
    """

    def __init__(self) -> None:
        self.families: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, played: Played) -> None:
        """Count one history."""
        counts = self.families[played.family]
        counts.update({each: getattr(played, each) for each in SUMS})
        counts.update(
            f"{found.kind} (not reportable yet)" if found.unacknowledged else found.kind
            for found in played.found
        )

    @property
    def whole(self) -> Counter[str]:
        """The sum of all families."""
        return sum(self.families.values(), Counter())

    def lines(self) -> Iterable[str]:
        """The table for people.

        A family counts under its policy with its managers, and under each of its options.
        """
        yield HEADER
        coarse: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for family, counts in self.families.items():
            policy, *options, managers = family.split()
            for part in (f"{policy}, {managers}", *options):
                coarse[part].update(counts)
        for name in sorted(coarse):
            yield _row(name, coarse[name])
        yield _row("everything", self.whole)


def _row(name: str, counts: Counter[str]) -> str:
    """One line for people."""
    sure, single = (100 * counts[each] / max(1, counts["admissions"]) for each in SUMS[2:])
    found = sorted((kind, n) for kind, n in counts.items() if kind not in SUMS)
    wrong = ": " + ", ".join(f"{n} {kind}" for kind, n in found) if found else ""
    admitted, promised = counts["admissions"], counts["promised"]
    return f"{admitted:7} {promised:8} {sure:5.1f} % {single:5.1f} %  {name}{wrong}"
