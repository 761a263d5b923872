"""The pictures of docs: those of the terminal are what the commands print today, and load nothing;
every page, and the terminal, is there light and dark, 1400 and 400 pixels wide."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.color_triplet import ColorTriplet

from tests.commands import ROOT
from tests.documents.terminals import COMMANDS, IMAGES, SIDES, THEMES, Picture, pictures

PAGE = (ROOT / "docs" / "reference" / "screenshots.md").read_text()
SHOWN = re.findall(r"!\[([^]]*)\]\(\.\./images/([^)]*)\)", PAGE)
NEEDED = 4.5  # the contrast that WCAG asks of text (success criterion 1.4.3)
AFRESH = "make the pictures anew: python -m tests.documents.terminals"


@pytest.mark.skipif(sys.platform != "linux", reason="the end of a pseudo-terminal is Linux's")
@pytest.mark.parametrize("name", COMMANDS)
def test_the_pictures_show_what_the_command_prints(name: str) -> None:
    for file, drawing in pictures(name):
        assert (IMAGES / file).read_text() == drawing, AFRESH


def test_another_output_is_another_picture() -> None:
    picture = Picture("why", "light", 1400)
    told = "no node takes it\n\n\x1b[1mnearest\x1b[0m"
    assert picture.drawn(told) == picture.drawn(told)
    assert picture.drawn(told) != picture.drawn(told.replace("nearest", "farthest"))
    assert picture.drawn(told) != picture.drawn(told.replace("\x1b[1m", ""))


def test_there_is_no_picture_of_a_command_that_is_not_drawn() -> None:
    drawn = {Picture(name, *side).file for name in COMMANDS for side in SIDES}
    assert {path.name for path in IMAGES.glob("terminal-*")} == drawn


@pytest.mark.parametrize("path", sorted(IMAGES.glob("terminal-*.svg")), ids=lambda path: path.name)
def test_a_picture_loads_nothing_and_has_a_text_alternative(path: Path) -> None:
    text = path.read_text()
    root = ElementTree.fromstring(text)
    (title,) = root.findall("{http://www.w3.org/2000/svg}title")
    assert (title.text or "").startswith("gpu-topology ")
    rest = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.findall(r"https?:|@import|@font-face|href|<script|<image", rest)
    assert not [found for found in re.findall(r"url\((.*?)\)", rest) if not found.startswith("#")]


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


@pytest.mark.parametrize("name", ["map", "node", "waiting", "report", "terminal-why"])
def test_the_page_of_screenshots_has_both_colours_and_both_widths(name: str) -> None:
    kind = "svg" if name.startswith("terminal") else "png"
    shown = {file for _, file in SHOWN}
    assert {f"{name}-{scheme}-{width}.{kind}" for scheme, width in SIDES} <= shown


def test_every_screenshot_has_words_and_the_width_of_its_name() -> None:
    for words, file in SHOWN:
        assert len(words) >= 20, file
        content = (IMAGES / file).read_bytes()
        if file.endswith(".png"):
            width = struct.unpack(">I", content[16:20])[0]
        else:
            width = int(ElementTree.fromstring(content).attrib["width"])
        assert width == int(re.findall(r"\d+", file)[-1]), file
