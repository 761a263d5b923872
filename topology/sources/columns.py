"""The columns of a matrix, from its header or, if that is lost, from the position of each X."""

import re
from collections.abc import Sequence
from itertools import takewhile

from topology.core.graph import MAX_GPUS
from topology.sources.imported import MAX_INDEX, Findings, SourceError
from topology.sources.inventory import MOST_NVLINKS
from topology.sources.lines import Line
from topology.sources.rows import CELL, DOTS, GPU, LABELS, NUMA, SELF, Header, split_row

MAX_NICS = 128
_LABELS = {
    "CPU Affinity": re.compile(r"CPUs?(?: Affinity)?", re.IGNORECASE),
    NUMA: re.compile(r"NUMA Affinity|NUMA(?: Nodes?)?(?= ?\t| ?$)", re.IGNORECASE),
    "GPU NUMA ID": re.compile(r"GPU NUMA ID", re.IGNORECASE),
}
_DEVICE = re.compile(r"(?=[^0-9]{0,62}[0-9])[A-Za-z][\w.-]{0,62}", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,3})")
_RUN_TOGETHER = re.compile(r"(?<=\S)(?=(?:GPU|NIC|mlx)[0-9])")


def read_header(text: str, rows_above: set[str] | None) -> Header | None:
    """Return the columns that this line names; None if it is no header.

    ``rows_above`` are the names of the rows above it, if there are any. Dots between two names stay
    as they are (see :func:`without_gaps`).
    """
    if "GPU" not in text:
        return None
    after = re.search(r"CPU|GPU\s{1,9}NUMA|NUMA", text, re.IGNORECASE)
    names = _RUN_TOGETHER.sub(" ", text[: after.start()] if after else text).split()
    if not names or not GPU.fullmatch(names[0]):
        return None
    devices = [name for name in names if not DOTS.fullmatch(name)]
    if any(CELL.fullmatch(name) or not _DEVICE.fullmatch(name) for name in devices):
        return None
    if len(names) == 1 and not after and rows_above is not None and names[0] not in rows_above:
        return None  # a row of which only the name is left
    if names[1:] and DOTS.fullmatch(names[1]) and len(devices) == 1:  # "GPU0 ..." is no header
        return None
    labels, unknown = _labels(text[after.start() :] if after else "")
    blanks = NUMA in labels and "\t" not in text
    return Header(tuple(names), labels, unknown, text.find(NUMA) if blanks else -1)


def _labels(text: str) -> tuple[tuple[str, ...], str]:
    """Return the affinity columns in their order, and the unknown words.

    If there are unknown words, no column counts as NUMA.
    """
    rest = re.sub(" +", " ", re.sub(r" ?\t[ \t]*", "\t", text))
    at: dict[str, int] = {}
    for label in reversed(LABELS):  # "GPU NUMA ID" before "NUMA", because it contains "NUMA"
        if match := _LABELS[label].search(rest):
            at[label] = match.start()
            rest = rest[: match.start()] + "\t" * len(match[0]) + rest[match.end() :]
    unknown = " ".join(rest.split())
    return tuple(sorted((at.keys() - {NUMA}) if unknown else at, key=at.__getitem__)), unknown


def only_labels(text: str) -> bool:
    """Check whether a line names affinity columns and nothing else."""
    labels, unknown = _labels(text)
    return bool(labels) and not unknown


def without_gaps(
    names: tuple[str, ...], line: int, gaps: dict[int, int], findings: Findings
) -> tuple[str, ...]:
    """Return the columns of a header, including those that ``NIC0 ... NIC5`` leaves out.

    ``gaps`` gets the number of hidden columns by their position.
    """
    columns: list[str] = []
    for at, name in enumerate(names):
        if not DOTS.fullmatch(name):
            columns.append(name)
            continue
        ends = [_NUMBERED.fullmatch(names[i]) for i in (at - 1, at + 1) if i < len(names)]
        first, last = ends if len(ends) == 2 else (None, None)
        hidden = int(last[2]) - int(first[2]) - 1 if first and last else 0
        if not first or not last or first[1] != last[1] or not 0 < hidden <= MAX_NICS:
            raise SourceError(
                line,
                name,
                "columns are missing here and their names are unknown; paste the whole table",
            )
        gaps[len(columns)] = hidden
        columns += [f"{first[1]}{int(first[2]) + 1 + k}" for k in range(hidden)]
        text = f"columns between {names[at - 1]} and {names[at + 1]} are missing: {hidden} are "
        findings.note(line, text + "assumed to exist, with unknown distances")
    return tuple(columns)


def check_columns(line: int, columns: tuple[str, ...]) -> None:
    """Refuse columns that are too many, numbered too high, or named twice."""
    gpus = sum(bool(GPU.fullmatch(name)) for name in columns)
    for count, what, most in ((gpus, "GPUs", MAX_GPUS), (len(columns) - gpus, "NICs", MAX_NICS)):
        if count > most:
            raise SourceError(line, None, f"{count} {what}; at most {most} are allowed")
    for name in columns:
        if GPU.fullmatch(name) and int(name[3:]) > MAX_INDEX:
            raise SourceError(line, name, f"GPUs are numbered 0 to {MAX_INDEX}")
        if columns.count(name) > 1:
            raise SourceError(line, name, "this column is in the header twice")


def columns_by_diagonal(
    found: Sequence[Line], last_line: int, findings: Findings
) -> tuple[str, ...]:
    """Return the columns of a matrix without a header, by the ``X`` under each row's own name.

    If rows are lost, too, columns stay without a name. If NIC rows follow, no GPU row is lost.
    Behind a switch every GPU is linked, so columns up to the last ``NV#`` are GPUs and the rest are
    NICs. Otherwise GPUs and NICs cannot be distinguished, and the text is refused.
    """
    line = found[0].number
    split = [[word for word, _ in split_row(text)] for _, text, _ in found]
    names = [row[0] for row in split]
    words = [list(takewhile(CELL.fullmatch, row[1:])) for row in split]
    width = max(len(row) for row in words)
    gpus = sum(bool(GPU.fullmatch(name)) for name in names)
    if not gpus:
        raise SourceError(line, names[0], "the table has rows of NICs, but none of a GPU")
    for at, ((number, _, _), name, row) in enumerate(zip(found, names, words, strict=True)):
        in_order = name == f"GPU{at}" if at < gpus else not GPU.fullmatch(name)
        if not in_order or (len(row) > at and row[at] != SELF):
            raise SourceError(
                number,
                name,
                "the header row is missing, and rows and X do not start at GPU0; paste the "
                "header row",
            )
    if len(names) == gpus:
        nvlinks = [[int(w[2:]) if w.startswith("NV") else 0 for w in row] for row in words]
        linked = max(at for row in nvlinks for at, n in enumerate([0, *row]) if n or not at)
        switch = any(sum(row) > MOST_NVLINKS for row in nvlinks)
        lone = width == 1 and not re.match(r"\s*GPU0\s+X\s+[0-9]", found[0].text)  # no CPU list
        if lone or (gpus < width and not switch):
            message = (
                f"the header row is missing, so columns after GPU{gpus - 1} may be GPUs or NICs"
            )
            raise SourceError(last_line, None, message + "; paste the whole table")
        gpus = max(gpus, linked)
        names = [f"GPU{i}" for i in range(gpus)]
    names += [f"NIC{at - gpus}" for at in range(len(names), width)]
    text = (
        f"the header row is missing; from X and the NVLinks, the columns are GPU0 to GPU{gpus - 1}"
    )
    nics = f" and {len(names) - gpus} NICs" if len(names) > gpus else ""
    findings.note(line, text + nics)
    return tuple(names)
