"""The pictures of docs have an alternative text and are all shown; the drawings of a terminal load
nothing, and their colours can be read."""

import re
import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.color_triplet import ColorTriplet

from tests.documents.blocks import PAGES, ROOT
from tests.documents.terminals import COMMANDS, THEMES, Picture, pictures

IMAGES = ROOT / "docs" / "images"
SHOWN = [
    (words, (page.parent / path).resolve())
    for page in PAGES
    for words, path in re.findall(r"!\[([^]]*)\]\(([^)]*)\)", page.read_text())
]
NEEDED = 4.5  # the contrast that WCAG asks of text (success criterion 1.4.3)


def test_another_output_is_another_picture() -> None:
    picture = Picture("why", "light", 1400)
    text = "no node takes it\n\n\x1b[1mnearest\x1b[0m"
    assert picture.drawn(text) == picture.drawn(text)
    assert picture.drawn(text) != picture.drawn(text.replace("nearest", "farthest"))
    assert picture.drawn(text) != picture.drawn(text.replace("\x1b[1m", ""))


@pytest.mark.skipif(sys.platform != "linux", reason="the end of a pseudo-terminal is Linux's")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_drawing_loads_nothing_and_has_a_text_alternative(name: str) -> None:
    for _, text in pictures(name):
        root = ElementTree.fromstring(text)
        (title,) = root.findall("{http://www.w3.org/2000/svg}title")
        assert (title.text or "").startswith("gpu-topology ")
        rest = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.findall(r"https?:|@import|@font-face|href|<script|<image", rest)
        assert not [each for each in re.findall(r"url\((.*?)\)", rest) if not each.startswith("#")]


@pytest.mark.parametrize("scheme", THEMES)
def test_every_colour_of_a_terminal_can_be_read(scheme: str) -> None:
    theme = THEMES[scheme]
    colours = [theme.ansi_colors[number] for number in range(1, 8)]
    for colour in (theme.foreground_color, *colours):
        assert contrast(colour, theme.background_color) >= NEEDED, (scheme, colour.hex)


def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    """By WCAG 2.2, "contrast ratio"."""
    lighter, darker = sorted(map(luminance, (one, other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: ColorTriplet) -> float:
    """By WCAG 2.2, "relative luminance"."""
    parts = [part / 255 for part in colour]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_picture_of_docs_is_shown() -> None:
    assert {file for _, file in SHOWN} >= set(IMAGES.iterdir())


@pytest.mark.parametrize(("words", "file"), SHOWN, ids=[file.name for _, file in SHOWN])
def test_a_picture_has_words_and_the_width_of_its_name(words: str, file: Path) -> None:
    assert len(words) >= 20
    if file.suffix == ".png":
        width = struct.unpack(">I", file.read_bytes()[16:20])[0]
        assert width == int(re.findall(r"\d+", file.stem)[-1])
