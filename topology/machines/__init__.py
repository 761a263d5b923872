"""A catalogue of real machines, from K80 VMs to GB200 trays.

:mod:`~topology.machines.catalogue` is the table. It is easier to read after the docstring of
:mod:`~topology.machines.notation`. :mod:`~topology.machines.mig` cuts GPUs into MIG instances.
"""

from difflib import get_close_matches

from topology.machines.catalogue import MACHINES
from topology.machines.notation import Machine

__all__ = [
    "MACHINES",
    "Machine",
    "UnknownMachine",
    "machine",
]


class UnknownMachine(ValueError):  # noqa: N818 - it is a bad value, and reads as one
    """A name that no machine of the catalogue has; ``close`` holds the most similar names."""

    def __init__(self, name: str) -> None:
        self.name = name
        shown = name if len(name) <= 60 else f"{name[:57]}..."
        longer = [each for each in MACHINES if each.startswith(shown.lower())]
        similar = get_close_matches(shown.lower(), MACHINES, n=3, cutoff=0.5)
        self.close = tuple(dict.fromkeys([*longer, *similar]))[:3]
        hint = f": did you mean {', '.join(self.close)}? " if self.close else "; "
        super().__init__(
            f"{shown!r} is not in the catalogue{hint}`gpu-topology machines` lists them"
        )


def machine(name: str) -> Machine:
    """Return the machine with this name. Raises :class:`UnknownMachine` if there is none.

    >>> machine("dgx2").topology("n").summary()
    '16 × Tesla V100-SXM3-32GB, NVLink 6'
    """
    try:
        return MACHINES[name]
    except KeyError:
        raise UnknownMachine(name) from None
