"""Colours: a policy has the same one in every plot and table, on light and on dark paper.

Plots are drawn once. What is drawn in a marker colour ``#fe0nnn`` becomes the CSS variable
``--cN`` in the page, and the style sheet says what that is on which paper. Nobody who sees red and
green alike should mix two policies up: the usual five differ in lightness too, and the others are
dashed.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

OURS = "gpu-topology"


@dataclass(frozen=True, slots=True)
class Hue:
    """A colour on light and on dark paper, and the dashes of its line (on, off, ...)."""

    light: str
    dark: str
    dashes: tuple[float, ...] = ()


def marker(number: int) -> str:
    """The colour that stands for the ``number``-th of a page while it is drawn."""
    return f"#fe0{number:03x}"


_PAPER = (
    Hue("#1c2024", "#e4e6e8"),
    Hue("#d9dce0", "#3a3f45"),
    Hue("#ffffff", "#15181b"),
    Hue("#656c74", "#9aa1a9"),
)
INK, FAINT, SURFACE, SOFT = (marker(n) for n in range(4))

_STEPS = (
    Hue("#f3c832", "#f3c832"),
    Hue("#a5c64a", "#b9d65c"),
    Hue("#48a878", "#52bd8a"),
    Hue("#28808c", "#3a98a8"),
    Hue("#365c98", "#5a80c4"),
    Hue("#40246e", "#8466c2"),
)
_FIRST_STEP = len(_PAPER)
STEPS = tuple(marker(_FIRST_STEP + n) for n in range(len(_STEPS)))  # from narrow to wide

_DASHED = (4.0, 1.5)
_DOTTED = (1.2, 1.4)
_KNOWN = {
    OURS: Hue("#0a58c2", "#63b3ff"),
    "LeastAllocated": Hue("#c8500a", "#ff8d55"),
    "MostAllocated": Hue("#c28a00", "#f2c14a"),
    "Preserve": Hue("#00855f", "#3fcb9d"),
    "Buddy": Hue("#b3559a", "#e79fd0"),
    "Random": Hue("#747b83", "#a3aab2", _DASHED),
    "DotProd": Hue("#2b93cf", "#8cd0f7", _DASHED),
    "GpuClustering": Hue("#83832a", "#cccb66", _DASHED),
    "GpuPacking": Hue("#8a1f50", "#ea7fae", _DASHED),
    "BestFit": Hue("#5a3fb0", "#ad9cff", _DASHED),
    "FGD": Hue("#3c4248", "#d3d7db", _DASHED),
}
_OTHERS = (
    Hue("#1a7a3a", "#63c983", _DOTTED),
    Hue("#b02a3a", "#ff8a94", _DOTTED),
    Hue("#2f9c93", "#6fdcd2", _DOTTED),
    Hue("#8c5a2a", "#d7a878", _DOTTED),
)
_FIRST_POLICY = _FIRST_STEP + len(_STEPS)


class Palette:
    """The colours of a page on which these policies occur; unknown ones in order of appearance."""

    def __init__(self, policies: Iterable[str]) -> None:
        self._numbers: dict[str, int] = {name: i for i, name in enumerate(_KNOWN)}
        self._hues = list(_KNOWN.values())
        for name in policies:
            if name not in self._numbers:
                self._numbers[name] = len(self._hues)
                self._hues.append(_OTHERS[(len(self._hues) - len(_KNOWN)) % len(_OTHERS)])

    def paint(self, policy: str) -> str:
        """The marker colour of a policy."""
        return marker(_FIRST_POLICY + self._numbers[policy])

    def dashes(self, policy: str) -> tuple[float, ...]:
        """The dashes of its line, none for a solid one."""
        return self._hues[self._numbers[policy]].dashes

    def light(self) -> Iterator[str]:
        """The declarations for light paper."""
        return (f"--c{i}:{hue.light}" for i, hue in enumerate(self._all()))

    def dark(self) -> Iterator[str]:
        """The declarations for dark paper."""
        return (f"--c{i}:{hue.dark}" for i, hue in enumerate(self._all()))

    def _all(self) -> tuple[Hue, ...]:
        return (*_PAPER, *_STEPS, *self._hues)


def variables(text: str) -> str:
    """A text with CSS variables in place of marker colours.

    >>> variables("stroke: #fe0011")
    'stroke: var(--c17)'
    """
    return re.sub(r"#fe0([0-9a-f]{3})", lambda found: f"var(--c{int(found[1], 16)})", text)
