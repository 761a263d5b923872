"""The files and folders whose pods ``check`` judges; what is wrong with one hides no other."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import name_of, tell, text_of
from scheduler_extender.files.podfile import (
    MAX_NOTES,
    MOST_PODS,
    NoPodError,
    NotJudgedError,
    PodFileError,
    read_each,
)
from scheduler_extender.told.together import Wanted

SUFFIXES = (".yaml", ".yml", ".json")
MOST_FILES = 4096


@dataclass(frozen=True, slots=True)
class Read:
    """The pods that ask for GPUs, how many warnings were told, and what is wrong with others."""

    wanted: list[Wanted]
    warnings: int
    faults: list[str]


def read_files(paths: Iterable[Path]) -> Read:
    """The pods of all files, and of the YAML and JSON files of all folders.

    Warnings are told. Of a folder, files without a pod that asks for GPUs are passed over. Raises
    :class:`BadInputError` where nothing asks for GPUs, or there is too much.
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
                found = read_each(text_of(file))
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
            faults += [f"{name_of(file)}: {fault}" for fault in found.faults]
            if found.placed:
                tell(f"note: {name_of(file)}: {found.placed}")
            wanted += [replace(each, file=name_of(file)) for each in found.wanted]
            notes = dict.fromkeys(note for each in found.wanted for note in each.notes)
            warnings += len(notes)
            for note in islice(notes, MAX_NOTES):
                tell(f"warning: {name_of(file)}: {note}")
            if len(wanted) > MOST_PODS:
                raise BadInputError(f"allowed are {MOST_PODS:,} pods at a time, here are more")
    if not wanted:
        *others, last = faults or [_one_line(nothing) or "Missing argument 'FILE'"]
        for fault in others:
            tell(f"error: {fault}")
        raise BadInputError(last)
    return Read(wanted, warnings, faults)


def _files(folder: Path) -> list[Path]:
    """The YAML and JSON files of a folder and those below it, without hidden ones."""
    found: list[Path] = []
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(at, name)
            for name in sorted(names)
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
            if Path(at, name).is_file()  # a FIFO would be waited for
        ]
        if len(found) > MOST_FILES:
            raise BadInputError(f"{folder}: allowed are {MOST_FILES:,} files, here are more")
    if not found:
        raise BadInputError(
            f"{folder}: the folder has no file that ends with {', '.join(SUFFIXES)}"
        )
    return found


def _one_line(lines: list[str]) -> str:
    more = len(lines) - 1
    return "" if not lines else lines[0] + (f" (and {more:,} more)" if more else "")
