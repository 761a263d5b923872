"""Shows which nodes would take each pod of some files and folders, and why others would not.

A fault in one pod or file does not hide the others.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, structs
from rich.console import Console
from rich.text import Text

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import did_you_mean, name_of, tell, text_of
from scheduler_extender.cli.options import Listing
from scheduler_extender.cli.queries import Look, Told, ordered, text_in
from scheduler_extender.explain import Struct
from scheduler_extender.explain.answers import best_first
from scheduler_extender.explain.groupfit import GroupFit, Judged, Together, Wanted, judge
from scheduler_extender.explain.nodeanswers import NodeAnswer, rows_of
from scheduler_extender.explain.nodesummary import memory_in_use
from scheduler_extender.explain.wording import listed, many, sets_text, verdict_text
from scheduler_extender.files.podfile import (
    MAX_NOTES,
    MOST_PODS,
    NoPodError,
    NotJudgedError,
    PodFileError,
    read_each,
)
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.terminal import (
    GAP,
    Shown,
    column,
    paragraph,
    section,
    show,
    table,
)
from scheduler_extender.web.waiting import Outlook, outlook_of
from topology.core.devices import PodUid

SUFFIXES = (".yaml", ".yml", ".json")
MOST_FILES = 4096
KEYS = 3  # columns that every part of a table would have to repeat: node, verdict and score
REMARKS = 24  # terminal columns that the remarks must have before sets of GPUs are kept on one line


@dataclass(frozen=True, slots=True)
class Read:
    """The pods that request GPUs, the number of warnings printed, and the faults of others."""

    wanted: list[Wanted]
    warnings: int
    faults: list[str]


def read_files(paths: Iterable[Path]) -> Read:
    """Read the pods of all files, and of the YAML and JSON files of all folders.

    Warnings are printed. A folder's files without a pod that requests GPUs are skipped. Raises
    :class:`BadInputError` if no pod requests GPUs, or if there are too many pods.
    """
    wanted: list[Wanted] = []
    faults: list[str] = []
    nothing: list[str] = []
    warnings = 0
    for path in paths:
        try:
            files = _files(path) if path.is_dir() else [path]
        except BadInputError as error:
            faults.append(str(error))
            continue
        for file in files:
            try:
                pod_file = read_each(text_of(file))
            except PodFileError as error:
                said = f"{name_of(file)}: {error}"
                passed_over = isinstance(error, NoPodError) and file is not path
                (nothing if passed_over else faults).append(said)
                if isinstance(error, NotJudgedError) and passed_over:
                    warnings += 1
                    tell(f"warning: {said}")
                continue
            except BadInputError as error:
                faults.append(str(error))
                continue
            faults += [f"{name_of(file)}: {fault}" for fault in pod_file.faults]
            if pod_file.placed:
                tell(f"note: {name_of(file)}: {pod_file.placed}")
            wanted += [replace(each, file=name_of(file)) for each in pod_file.wanted]
            notes = dict.fromkeys(note for each in pod_file.wanted for note in each.notes)
            warnings += len(notes)
            for note in islice(notes, MAX_NOTES):
                tell(f"warning: {name_of(file)}: {note}")
            if len(wanted) > MOST_PODS:
                raise BadInputError(f"more than {MOST_PODS:,} pods; check fewer at a time")
    if not wanted:
        more = f" (and {len(nothing) - 1:,} more)" if nothing[1:] else ""
        empty = [f"{first}{more}" for first in nothing[:1]]
        *others, last = faults or empty or ["Missing argument 'FILE'. (try check --help)"]
        for fault in others:
            tell(f"error: {fault}")
        raise BadInputError(last)
    return Read(wanted, warnings, faults)


def _files(folder: Path) -> list[Path]:
    """Return the YAML and JSON files of a folder and its subfolders, without hidden ones.

    Raises :class:`BadInputError` if there are none, or too many.
    """
    found: list[Path] = []
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(at, name)
            for name in sorted(names)
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
            if Path(at, name).is_file()  # reading a FIFO would block
        ]
        if len(found) > MOST_FILES:
            raise BadInputError(f"{folder}: more than {MOST_FILES:,} files; check fewer at a time")
    if not found:
        *others, last = SUFFIXES
        raise BadInputError(f"{folder}: the folder has no {', '.join(others)} or {last} file")
    return found


def judged(read: Read, look: Look, listing: Listing, *, strict: bool) -> int:
    """Print every node's answer to the pods, and return the exit code."""
    ordered((), lambda: _columns((), 0), listing.sort_by)  # checks the name for every format
    for note in look.notes:
        tell(f"note: {note}")
    found = judge(look.cluster, read.wanted)
    snapshot = look.cluster.snapshot()
    warnings = list(_warnings(snapshot, read.wanted))
    for warning in warnings:
        tell(f"warning: {warning}")
    first, *more = [[a.node for a in best_first(each.answers)] for each in found.judged]
    told = Told(
        lambda: _data(found, look.today, alone=len(read.wanted) == 1),
        [f"node/{name}" for name in first if all(name in others for others in more)],
        lambda console, wide: _draw(console, found, snapshot, listing, wide=wide),
        look.notes,
    )
    sys.stdout.write(text_in(told, listing.form))
    for fault in read.faults:
        tell(f"error: {fault}")
    if read.faults:
        return 2
    warned = strict and (read.warnings or warnings or not found.all_fit)
    return 0 if found.all_may_come and not warned else 1


def _warnings(snapshot: Snapshot, wanted: Sequence[Wanted]) -> Iterator[str]:
    """Yield warnings about selectors that have no effect, and about resources that no node serves.

    A selector has no effect on a node whose labels are not known.
    """
    unseen = sum(not info.node_object.exists for info in snapshot.nodes)
    going = ((pod, pod.attributes.eligible_nodes) for pod in wanted)
    picky = list(dict.fromkeys(pod.name for pod, at in going if at.selector or at.terms))
    if unseen and picky:
        yield (
            f"nodeSelector and node affinity of {listed(picky)} are ignored on {unseen:,} of "
            f"{len(snapshot.nodes):,} nodes, because not all labels of these nodes are known"
        )
    topologies = (info.topology for info in snapshot.nodes if info.topology is not None)
    served = sorted({each.name for topology in topologies for each in topology.resources})
    for name in dict.fromkeys(pod.request.resource for pod in wanted):
        if served and name not in served:
            said = did_you_mean(name, served) or f"; the nodes serve {', '.join(served[:8])}"
            yield f"no node serves {name}{said}"
    nodes = [info.node_object for info in snapshot.nodes]
    if not all(node.allocatable and not node.partial for node in nodes):
        return  # a node that is not fully known may serve it
    given = {"cpu", "memory", "ephemeral-storage"}  # each node has them, also if a file omits them
    given.update(name for node in nodes for name, amount in node.allocatable or () if amount)
    for name in dict.fromkeys(
        name for pod in wanted for name, asked in pod.attributes.requests if asked
    ):
        if name not in given:
            yield f"no node serves {name}{did_you_mean(name, sorted(given))}"


class Checked(Struct, frozen=True):
    """Every node's answer to one pod. ``group`` is set if it is the only pod and has a group."""

    pod: str
    request: str
    file: str
    nodes: list[NodeAnswer]
    copies: Annotated[int, Meta(description="number of pods that its object creates at once")] = 1
    fit: Annotated[
        int | None, Meta(description="the number of these pods that certainly fit at once")
    ] = None
    group: GroupFit | None = None


def _data(answers: Together, today: float, *, alone: bool) -> Checked | dict[str, Any]:
    """Return the answer as data. With ``alone`` it is that of the one pod, without a list."""
    pods: list[Checked] = []
    for each in answers.judged:
        nodes = rows_of(each.pods[0].request, each.answers, today)
        pods += [
            Checked(pod.name, pod.text, pod.file, nodes, pod.copies, each.fit(pod))
            for pod in each.pods
        ]
    if not alone:
        return {"pods": pods, "groups": answers.groups, "objects": answers.objects}
    return structs.replace(pods[0], group=answers.groups[0]) if answers.groups else pods[0]


def _draw(
    console: Console, answers: Together, snapshot: Snapshot, listing: Listing, *, wide: bool
) -> None:
    """Print the answer for people, with one table for pods that have equal requests.

    The table has the nodes that would take these pods; with ``wide`` it has every node.
    """
    for number, each in enumerate(answers.judged):
        first = each.pods[0]
        outlook = outlook_of(snapshot, first.record(PodUid("")), each.answers, first.text)
        rows = outlook.best_nodes
        if wide:
            rows = rows_of(first.request, each.answers, snapshot.today)
            rows.sort(key=lambda row: (not row.may_come, -(row.score or 0), row.node))
        if listing.no_headers:
            _draw_rows(console, rows, listing)
            continue
        if number:
            console.print()
        _draw_outlook(console, each, outlook, wide=wide)
        if rows:
            console.print()
            _draw_rows(console, rows, listing)
        if (left := outlook.taken_by - len(rows)) > 0:
            console.print(f"… {left:,} more nodes would take it (-o wide lists all nodes)")
    if not listing.no_headers:
        _draw_together(console, answers)


def _draw_outlook(console: Console, each: Judged, outlook: Outlook, *, wide: bool) -> None:
    """Print the pods' request, how many fit, and what all nodes answer.

    Unless ``wide``, also why nodes reject the pods, and which of these nodes are nearest.
    """
    names = list(dict.fromkeys(pod.name for pod in each.pods))
    word = "requests" if len(names) == 1 else "each request"
    console.print(Text.assemble((listed(names), "bold"), f" {word} {outlook.request}"))
    for pod in each.pods:
        if fit := each.fit(pod):
            told = f"{pod.name}: {fit:,} of its {pod.copies:,} pods fit at once"
            paragraph(console, told, "green" if fit == pod.copies else "red")
    paragraph(console, outlook.words, "green" if outlook.taken_by else "red")
    if wide:
        return
    said = [f"{many(nodes, 'node')}: {reason}" for reason, nodes in outlook.reasons]
    said += [f"{outlook.more_reasons} more reasons"] if outlook.more_reasons else []
    section(console, "why not", said)
    section(console, "nearest", [f"{miss.node}: {miss.words}" for miss in outlook.misses])


def _draw_together(console: Console, answers: Together) -> None:
    """Print how many pods of each group and of each object fit at once."""
    if answers.groups:
        console.print()
    for group in answers.groups:
        console.print(Text(group.text, "red" if group.rejected else "green"))
    for made in answers.objects:
        console.print(Text(made.text, "green" if made.fit == made.copies else "red"))
    by_themselves = [pod for each in answers.judged for pod in each.pods if pod.group_ref is None]
    if len(by_themselves) > 1:
        console.print()
        console.print(
            f"each of the {len(by_themselves)} pods without a group is evaluated as if alone"
        )


def _draw_rows(console: Console, rows: Sequence[NodeAnswer], listing: Listing) -> None:
    """Print the nodes' answers.

    This prints a table, or a paragraph for each node if the terminal is too narrow for a table.
    """
    columns = _columns(rows, console.width)
    rows = ordered(rows, lambda: columns, listing.sort_by)
    answers = table(rows, *columns, headers=not listing.no_headers)
    show(console, answers, KEYS, ((row.node, _lines(row)) for row in rows))


def _lines(row: NodeAnswer) -> Iterator[Text | str]:
    yield Text.assemble(_verdict(row), f", score {_score(row)}")
    if row.outcomes:
        yield f"may hand out {sets_text(row.outcomes)}"
    if remarks := _remarks(row):
        yield remarks


def _columns(rows: Sequence[NodeAnswer], width: int) -> list[list[Shown[NodeAnswer]]]:
    """Return the columns of a table of the nodes' answers. ``width`` is the terminal's.

    Sets of GPUs are not wrapped if the terminal is wide enough.
    """
    keys = [(row.node, _verdict(row).plain, "score") for row in rows]
    sets = max((len(sets_text(row.outcomes)) for row in rows), default=0)
    taken = sum(max(map(len, column)) + GAP for column in zip(*keys, strict=True)) + sets + GAP
    remarks = REMARKS if any(map(_remarks, rows)) else 0
    return [
        column("node", lambda row: row.node, folds=True),
        column("verdict", _verdict),
        column("score", _score, figure=True),
        column("may hand out", lambda row: sets_text(row.outcomes), folds=width - taken < remarks),
        column("remarks", _remarks, folds=True),
    ]


def _verdict(row: NodeAnswer) -> Text:
    if row.passes and row.ineligible:
        return Text("ineligible", "red")
    return verdict_text(row.verdict, passes=row.passes)


def _score(row: NodeAnswer) -> str:
    """Return the score; a dash for a node that would not take the pod."""
    return "–" if row.score is None else str(row.score)


def _remarks(row: NodeAnswer) -> str:
    """Return why the node does not take the pod, or what to beware of if it does."""
    fields = ", ".join(row.lacks)
    remarks = (
        f"not eligible because of {row.bar}" if row.ineligible else "",
        row.message,
        f"also: {', '.join(row.also)}" if row.also else "",
        row.note,
        row.miss.words if row.miss is not None and row.miss.holders else "",
        memory_in_use(row.shared_gpus),
        f"warning: {', '.join(row.hazards)}" if row.hazards else "",
        f"free CPUs and memory are unknown: the node's record has no {fields}" if fields else "",
    )
    return "; ".join(filter(None, remarks))
