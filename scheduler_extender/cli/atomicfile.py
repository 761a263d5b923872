"""Files that are written in one step, and changes of files below a folder that stands for ``/``."""

from __future__ import annotations

import difflib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scheduler_extender.cli.commandline import BadInputError
from topology.regularfile import content

_HALF = ".half"
_MAX_LINKS = 40  # the kernel's own
MAX_TEXT = 1024 * 1024  # bytes of a file that is changed


def write(path: Path, data: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Write a file in one step: who reads it sees the old content or the new one, whole.

    The file beside it that is written first begins with a dot, so that the kubelet, which reads
    all files of its folder, leaves it alone. Raises :class:`OSError`.
    """
    for left in path.parent.glob(f".{path.name}.*{_HALF}"):  # by somebody who was killed
        left.unlink(missing_ok=True)
    # Its mode is 0600 from the first moment.
    handle, temporary = tempfile.mkstemp(_HALF, f".{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), *owner)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What becomes of a file; a text of None: there is none. ``path`` is as the node itself has it.

    ``mode`` is a new file's, and the most that one which is there may keep of its own if it is
    ``secret``; nobody is shown what is. ``copy`` is where the text of before is kept.
    """

    path: str
    before: str | None
    after: str | None
    mode: int = 0o644
    copy: str | None = None
    secret: bool = False

    def difference(self) -> str:
        """What it changes, as ``diff -u`` shows it."""
        if self.secret:
            return f"{self.path}: {self.kind()}, not shown\n"
        before, after = ((each or "").splitlines() for each in (self.before, self.after))
        old, new = (self.path if each else "/dev/null" for each in (self.before, self.after))
        lines = difflib.unified_diff(before, after, old, new, lineterm="")
        return "".join(f"{line}\n" for line in lines)

    def kind(self) -> str:
        """What happens, in a word."""
        if self.after is None:
            return "removed"
        return "new" if self.before is None else "changed"


class Files:
    """The files of a node, whose ``/`` is the folder ``root`` here."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def _here(self, path: str) -> Path:
        """Where the file is. Links lead where they do under chroot, never out of the root.

        Raises :class:`BadInputError`.
        """
        here, steps, links = self._root, path.split("/")[::-1], 0
        while steps:
            step = steps.pop()
            try:
                target = str((here / step).readlink()) if (here / step).is_symlink() else None
            except OSError as error:
                raise BadInputError(f"{here / step[:64]}: {error.strerror}") from error
            if step == "..":
                here = here if here == self._root else here.parent
            elif step and target is not None:
                here, links = self._root if target.startswith("/") else here, links + 1
                steps += target.split("/")[::-1]
            else:
                here /= step
            if links > _MAX_LINKS:
                raise BadInputError(f"{self._root / path[1:]}: more than {_MAX_LINKS} links")
        return here

    def text(self, path: str) -> str | None:
        """A file's text; None if there is no such file. Raises :class:`BadInputError`."""
        here = self._here(path)
        try:
            return content(here, MAX_TEXT).decode()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise BadInputError(f"{here}: not UTF-8 text: {error.reason}") from error
        except OSError as error:
            raise BadInputError(f"{here}: {error.strerror}") from error

    def names(self, folder: str) -> list[str]:
        """The paths of the files of a folder; none if there is no such folder."""
        here = self._here(folder)
        try:
            paths = sorted(f"{folder}/{each.name}" for each in here.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BadInputError(f"{here}: {error.strerror}") from error
        return [path for path in paths if self._here(path).is_file()]

    def shows(self, change: Change) -> bool:
        """Whether a secret that stays can be read by others than its mode allows."""
        here = self._here(change.path)
        there = change.secret and change.after is not None and here.exists()
        return there and bool(here.stat().st_mode & 0o777 & ~change.mode)

    def apply(self, change: Change) -> None:
        """Make a change, and the copy of before first. Raises :class:`BadInputError`."""
        here = self._here(change.path)
        if change.copy is not None and change.before is not None:
            self._write(change.copy, change.before, 0o600)
        most = change.mode if change.secret else 0o7777
        if change.after is not None:
            self._write(change.path, change.after, change.mode, most)
            return
        try:
            here.unlink(missing_ok=True)
        except OSError as error:
            raise BadInputError(f"{here}: {error.strerror}") from error

    def _write(self, path: str, text: str, mode: int, most: int = 0o7777) -> None:
        here = self._here(path)
        owner = None
        try:
            here.parent.mkdir(0o700, parents=True, exist_ok=True)
            if here.exists():
                found = here.stat()
                mode, owner = found.st_mode & most, (found.st_uid, found.st_gid)
            write(here, text.encode(), mode, owner)
        except OSError as error:
            raise BadInputError(f"{here}: {error.strerror}") from error
