"""Checks whether the installed parts work together, and shows the remedies."""

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from scheduler_extender.cli.forwarding import METRICS, forwarded
from scheduler_extender.cli.inputs import name_of, text_of
from scheduler_extender.cli.kubeconfig import Access, asking
from scheduler_extender.cli.options import Form
from scheduler_extender.cli.queries import Told, answer
from scheduler_extender.doctor.checks import judged
from scheduler_extender.doctor.collector import Asked, Look
from scheduler_extender.doctor.findings import Finding, State
from scheduler_extender.doctor.observations import Configuration
from scheduler_extender.terminal import column, show, table

STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red", State.UNSEEN: "dim"}
MAX_CONFIGURATION = 1024 * 1024  # bytes of a configuration


class Line(NamedTuple):
    """A line of a check's output. Only the first line of a check shows its name."""

    check: str
    finding: Finding
    first: bool


def examine(
    configurations: Sequence[Path], system: str, access: Access, form: Form, *, forward: bool
) -> None:
    """Print the findings of all checks, and end the command. Raises :class:`BadInputError`."""
    files = [
        Configuration(where=name_of(each), text=text_of(each, MAX_CONFIGURATION))
        for each in configurations
    ]
    metrics = None
    if forward:
        with forwarded("--forward", access, system, METRICS) as port:
            metrics = port.text("/metrics")
    with asking(access) as (api, namespace):
        asked = Asked(
            system=system,
            version=version("gpu-topology"),
            namespace=namespace,
            files=files,
            metrics=metrics,
        )
        seen = Look(api, asked).all()
        lines = [
            Line(name, each, not number)
            for name, found in judged(seen).items()
            for number, each in enumerate(found)
        ]
    failed = sorted({line.check for line in lines if line.finding.state is State.FAIL})
    told = Told(
        lambda: {
            "lines": [{"check": x.check, **msgspec.to_builtins(x.finding)} for x in lines],
        },
        failed,
        lambda console, _: _draw(console, lines),
        yes=not failed,
    )
    answer(lambda: told, form, watch=False)


def _draw(console: Console, lines: Sequence[Line]) -> None:
    """Print the findings, and their number by state.

    This prints a table, or a paragraph for each finding if the terminal is too narrow.
    """
    rows = [
        (line.check if not n and line.first else "", _state(line) if not n else Text(), words)
        for line in lines
        for n, words in enumerate(_texts(line.finding))
    ]
    shown = table(
        rows,
        column("check", lambda row: row[0]),
        column("", lambda row: row[1]),
        column("finding", lambda row: row[2], folds=True),
    )
    instead = (
        (line.check, [Text.assemble(_state(line), ": ", first), *below])
        for line in lines
        for first, *below in [_texts(line.finding)]
    )
    show(console, shown, 2, instead)
    count = Counter(line.finding.state for line in lines)
    console.print()
    console.print(
        Text(", ").join(Text(f"{count[s]} {s.value}", STYLES[s]) for s in State if count[s])
    )


def _state(line: Line) -> Text:
    return Text(line.finding.state.value, STYLES[line.finding.state])


def _texts(finding: Finding) -> list[Text]:
    """Return the finding's text, and below it the remedy and the page."""
    texts = [Text(finding.text)]
    if finding.remedy:
        texts.append(Text(f"→ {finding.remedy}"))
    if finding.page:
        texts.append(Text(f"  {finding.page}", "dim"))
    return texts
