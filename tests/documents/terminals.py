"""Pictures of a terminal, of what the commands really print there: ``make screenshots``, or
``python -m tests.documents.terminals FOLDER``.

Each command runs in a terminal of its own (a pseudo-terminal), on a cluster file of the examples.
What it prints is drawn as an SVG: light and 1400 pixels wide, dark and 400 pixels wide. The
pictures load nothing, and the same output makes the same bytes.
"""

import errno
import fcntl
import io
import os
import pty
import shlex
import struct
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from rich.color import parse_rgb_hex
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from scheduler_extender.cli import main as command
from tests.commands import printing

COMMANDS = {
    "why": "why team-a/train --cluster examples/clusters/why.yaml",
    "map": "map --cluster examples/clusters/where.yaml",
    "nodes": "nodes --cluster examples/clusters/where.yaml",
    "node": "node train-01 --cluster examples/clusters/where.yaml",
    "waiting": "waiting -n team-a --cluster examples/clusters/where.yaml",
}
COLUMNS = {1400: 110, 400: 44}  # by how many pixels wide a picture is, the columns of its terminal
# How each page is shown: both colours and both widths, once each.
SIDES = (("light", 1400), ("dark", 400))


def _theme(back: str, fore: str, colours: str) -> TerminalTheme:
    """A theme of hex colours: background, text, and the eight of every terminal, black first."""
    every = [parse_rgb_hex(colour) for colour in (back, fore, *colours.split())]
    return TerminalTheme(every[0], every[1], [*every[2:]])


# The colours of the map's pages, each with a contrast of 4.5 or more to the background.
THEMES = {
    "light": _theme("ffffff", "0b0f13", "0b0f13 a61b1b 146932 7a4f00 1a5a99 7b3fa0 006973 52606c"),
    "dark": _theme("12171c", "f0f4f7", "12171c ff8c8c 6ed68c f0b429 8ac2f5 d3a5f0 6ecdd6 f0f4f7"),
}
RICH_EDGE = "rgba(255,255,255,0.35)"
# What is around a terminal, and what rich has there, which nobody sees on white.
EDGES = {"light": "#d5dce3", "dark": "#35404a"}
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{pixels}" viewBox="0 0 {{width}} {{height}}" \
role="img" xml:space="preserve">
<title>{title}</title>
<style>
.{{unique_id}}-matrix {{{{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, \
monospace; font-size: {{char_height}}px; line-height: {{line_height}}px; white-space: pre; }}}}
{{styles}}
</style>
<defs>
<clipPath id="{{unique_id}}-clip-terminal">
<rect x="0" y="0" width="{{terminal_width}}" height="{{terminal_height}}"/>
</clipPath>
{{lines}}
</defs>
{{chrome}}
<g transform="translate({{terminal_x}}, {{terminal_y}})" \
clip-path="url(#{{unique_id}}-clip-terminal)">
{{backgrounds}}
<g class="{{unique_id}}-matrix">
{{matrix}}
</g>
</g>
</svg>
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A command's picture; ``pixels`` is its width, ``scheme`` light or dark."""

    name: str
    scheme: str
    pixels: int

    @property
    def file(self) -> str:
        """What its file is called."""
        return f"terminal-{self.name}-{self.scheme}-{self.pixels}.svg"

    def drawn(self, printed: str) -> str:
        """The SVG of what the command has ``printed``."""
        command = f"gpu-topology {COMMANDS[self.name]}"
        console = Console(
            file=io.StringIO(), width=COLUMNS[self.pixels], record=True, force_terminal=True
        )
        console.print(Text.assemble("$ ", (command, "bold")))
        console.print(Text.from_ansi(printed))
        drawing = console.export_svg(
            title="",
            theme=THEMES[self.scheme],
            code_format=FORMAT.format(pixels=self.pixels, title=command),
            unique_id="t",
        )
        return drawing.replace(RICH_EDGE, EDGES[self.scheme])


def printed(name: str, columns: int) -> str:
    """What a command prints in a terminal of so many columns, colours included."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}
    environment |= {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    try:
        with ThreadPoolExecutor(1) as reader:
            found = reader.submit(lambda: b"".join(_read(ours)))
            with (
                os.fdopen(theirs, "w") as terminal,
                patch.dict(os.environ, environment, clear=True),
            ):
                printing(command, shlex.split(COMMANDS[name]), terminal, terminal)
    finally:
        os.close(ours)
    return found.result().decode().replace("\r\n", "\n").rstrip("\n")


def _read(terminal: int) -> Iterator[bytes]:
    """Returns the output of a terminal until its other end is closed."""
    while True:
        try:
            some = os.read(terminal, 65_536)
        except OSError as error:
            if error.errno == errno.EIO:  # as Linux says it
                return
            raise
        if not some:
            return
        yield some


def pictures(name: str) -> Iterator[tuple[str, str]]:
    """The pictures of one command, each with the name of its file."""
    for scheme, pixels in SIDES:
        picture = Picture(name, scheme, pixels)
        yield picture.file, picture.drawn(printed(name, COLUMNS[pixels]))


def main(folder: Path) -> None:
    """Draw all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COMMANDS:
        for file, drawing in pictures(name):
            (folder / file).write_text(drawing)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
