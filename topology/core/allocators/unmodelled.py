"""``any``: every subset of the free devices may come."""

from __future__ import annotations

from topology.core.allocators.outcomes import Call, Outcomes, every_choice
from topology.core.remembering import remembered


class Unmodelled:
    """The model of a plugin that we know nothing of: it may hand out any free devices."""

    name = "any"
    monotone = True

    def outcomes(self, call: Call) -> Outcomes:
        """All choices of the call's size.

        >>> from topology.machines import machine
        >>> shape = machine("dgx1-v100").topology("n").shape
        >>> Unmodelled().outcomes(Call(shape, 0b111, 2)).sets
        (3, 5, 6)
        """
        return _choices(call)


@remembered
def _choices(call: Call) -> Outcomes:
    return every_choice(call, exact=True)


ANY = Unmodelled()
