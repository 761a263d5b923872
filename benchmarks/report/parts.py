"""What a page is made of, before it is HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Column:
    """A heading with its unit; figures stand on the right."""

    name: str
    unit: str = ""
    figures: bool = True


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure or a name."""

    text: str
    mark: str = ""  # a CSS class: ``best`` of its column


@dataclass(frozen=True, slots=True)
class Row:
    """Cells."""

    cells: Sequence[Cell]
    ours: bool = False  # which is emphasised


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are compared with one another."""

    heading: str
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Table:
    """Groups of rows, and what must be known to read them."""

    columns: Sequence[Column]
    groups: Sequence[Group]
    note: str


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend."""

    text: str
    colour: str
    dashed: bool = False
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing."""

    caption: str
    drawing: Markup
    says: str  # the same in words, for those who cannot see it


@dataclass(frozen=True, slots=True)
class Figure:
    """Drawings of one kind, small multiples of one another."""

    title: str
    text: str
    panels: Sequence[Panel]
    keys: Sequence[Key] = ()
    lined: bool = False  # whether it is read by the section's legend, on paper right there


@dataclass(frozen=True, slots=True)
class Section:
    """One sweep."""

    mode: str
    title: str
    lead: Sequence[str]
    played: Sequence[tuple[str, Sequence[str]]]
    table: Table
    keys: Sequence[Key]
    figures: Sequence[Figure]
    parameters: Sequence[tuple[str, str]]
    command: str
    warnings: Sequence[str] = field(default=())
