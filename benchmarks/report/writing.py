"""Sections into HTML. The template and the style sheet are files beside this one."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from benchmarks.figures.simulated import Simulated
from benchmarks.report.colours import Palette
from benchmarks.report.parts import Figure, Section
from benchmarks.report.reading import together
from benchmarks.report.sweeps import section as sweep_section

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write(files: Sequence[Simulated]) -> str:
    """The page (:func:`benchmarks.report.page`)."""
    all_figures = together(files)
    palette = Palette(row.policy for found in all_figures for row in found.rows)
    sections = [sweep_section(found, palette) for found in all_figures]
    numbers = count(1)
    return _TEMPLATES.get_template("page.html.j2").render(
        sections=[_own_names(section, numbers) for section in sections],
        light=";".join(palette.light()),
        dark=";".join(palette.dark()),
    )


def _own_names(section: Section, numbers: Iterator[int]) -> Section:
    """Drawings name their parts, and two drawings in a page must not use one name."""

    def renamed(figure: Figure) -> Figure:
        return replace(
            figure,
            panels=[replace(p, drawing=_named(p.drawing, next(numbers))) for p in figure.panels],
        )

    return replace(section, figures=[renamed(figure) for figure in section.figures])


def _named(drawing: Markup, number: int) -> Markup:
    named = re.sub(r'(<[^<>]*?(?: id="| href="#|url\(#))', rf"\g<1>d{number}-", str(drawing))
    return Markup(named)  # noqa: S704 - it was Markup before
