"""What a cluster file says that pods can have of a node, beside GPUs; the simulation reads it."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from scheduler_extender.quantities import quantity

# The largest amounts, which are no limit.
MOST = (("cpu", 10**9), ("memory", 10**18), ("pods", 10**6))


@dataclass(frozen=True, slots=True)
class Allocatable:
    """What pods can have of a node: CPU in milli, memory in bytes, and how many pods."""

    cpu: int
    memory: int
    pods: int = 110


def allocatable_of(amounts: Mapping[str, str | int]) -> Allocatable:
    """Read quantities; what is absent is no limit. Raises :class:`ValueError`."""
    read: dict[str, Decimal | int] = {}
    for name, most in MOST:
        try:
            read[name] = quantity(str(amounts[name])) if name in amounts else most
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if not 0 <= read[name] <= most:
            raise ValueError(f"{name}: {amounts[name]} is not between 0 and {most}")
    return Allocatable(int(read["cpu"] * 1000), int(read["memory"]), int(read["pods"]))
