"""One call to NVML after the other: one that fails costs the one fact it was asked for.

What a GPU does not have (NotSupported for NVLinks, MIG, ECC, fabric) is an answer. What the driver
does not offer, does not allow or gets wrong is *unseen*, with NVML's own words as the cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import pynvml

from topology.agent.decides.observed import Unseen

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_FOUND)
"""Errors that are an answer: the GPU has no such thing."""
NOT_TOLD = (
    *ABSENT,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)
"""Errors that say nothing of the GPU's health: it has no such thing, or we may not know."""

Handle = Any
"""A device as ``pynvml`` hands it out."""


class Asker:
    """Asks, and notes what could not be had; a fact of many GPUs is one line."""

    def __init__(self) -> None:
        self._failures: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def ask(
        self,
        fact: str,
        of: str,
        function: Callable[..., Any],
        *args: Any,
        absent: Collection[int] = ABSENT,
    ) -> Any:
        """The answer, None where there is none. A GPU that is lost raises all the same."""
        try:
            return function(*args)
        except pynvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code == LOST:
                raise
            if code not in absent:
                self._failures[fact, words(error)].append(of)
        except (UnicodeDecodeError, ValueError) as error:
            self._failures[fact, str(error)].append(of)
        return None

    def note(self, fact: str, cause: str, of: str) -> None:
        """A fact that could not be had, though no call failed."""
        self._failures[fact, cause].append(of)

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """What could not be had so far."""
        return tuple(
            Unseen(fact, cause, ", ".join(dict.fromkeys(filter(None, of))))
            for (fact, cause), of in self._failures.items()
        )


def words(error: Exception) -> str:
    """NVML's own words for an error."""
    return str(error) or type(error).__name__
