"""Checks whether the installed parts work together, and shows the remedies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

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
        found = judged(seen)
    failed = sorted(c for c, each in found.items() if any(f.state is State.FAIL for f in each))
    told = Told(
        lambda: {
            "lines": [
                {"check": check, **msgspec.to_builtins(finding)}
                for check, findings in found.items()
                for finding in findings
            ]
        },
        failed,
        lambda console, _: _draw(console, found),
        yes=not failed,
    )
    answer(lambda: told, form, watch=False)


def _draw(console: Console, found: Mapping[str, Sequence[Finding]]) -> None:
    """Print the findings, and their number by state.

    This prints a table, or a paragraph for each finding if the terminal is too narrow.
    """
    findings = [(check, n, each) for check, some in found.items() for n, each in enumerate(some)]
    rows = [
        (check if not number + n else "", _state(finding) if not n else Text(), words)
        for check, number, finding in findings
        for n, words in enumerate(_texts(finding))
    ]
    shown = table(
        rows,
        column("check", lambda row: row[0]),
        column("", lambda row: row[1]),
        column("finding", lambda row: row[2], folds=True),
    )
    instead = (
        (check, [Text.assemble(_state(finding), ": ", first), *below])
        for check, _, finding in findings
        for first, *below in [_texts(finding)]
    )
    show(console, shown, 2, instead)
    count = Counter(finding.state for *_, finding in findings)
    console.print()
    console.print(
        Text(", ").join(Text(f"{count[s]} {s.value}", STYLES[s]) for s in State if count[s])
    )


def _state(finding: Finding) -> Text:
    return Text(finding.state.value, STYLES[finding.state])


def _texts(finding: Finding) -> list[Text]:
    """Return the finding's text, and below it the remedy and the page."""
    remedy = [Text(f"→ {finding.remedy}")] if finding.remedy else []
    page = [Text(f"  {finding.page}", "dim")] if finding.page else []
    return [Text(finding.text), *remedy, *page]
