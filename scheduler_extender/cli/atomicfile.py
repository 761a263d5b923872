"""Writes files in one step, and changes files below a folder that stands for ``/``."""

import difflib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scheduler_extender.cli.commandline import BadInputError
from topology.regularfile import content

_HALF = ".half"
_MAX_LINKS = 40  # the kernel's own limit
MAX_TEXT = 1024 * 1024  # bytes of a file that is changed


def write(path: Path, data: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Write a file in one step, so that a reader sees either the old or the new content, whole.

    The content is first written to a temporary file beside it. The name of that file begins with a
    dot, because the kubelet reads all other files of its folder. Raises :class:`OSError`.
    """
    for left in path.parent.glob(f".{path.name}.*{_HALF}"):  # left behind by a killed process
        left.unlink(missing_ok=True)
    # mkstemp creates the file with mode 0600, so others can never read it.
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
    """A change of one file. A text of None means that the file does not exist.

    ``path`` is the path on the node itself. ``mode`` is the mode of a new file. An existing file
    keeps its mode; if it is ``secret``, it loses the permissions that ``mode`` lacks. The content
    of a secret is never shown. ``copy`` is the path at which the former text is kept.
    """

    path: str
    old_text: str | None
    new_text: str | None
    mode: int = 0o644
    copy: str | None = None
    secret: bool = False

    def difference(self) -> str:
        """Return the change in the format of ``diff -u``; a secret's content is not shown."""
        if self.secret:
            return f"{self.path}: {self.kind()}; a secret, so its content is not shown\n"
        before, after = ((each or "").splitlines() for each in (self.old_text, self.new_text))
        old, new = (self.path if each else "/dev/null" for each in (self.old_text, self.new_text))
        lines = difflib.unified_diff(before, after, old, new, lineterm="")
        return "".join(f"{line}\n" for line in lines)

    def kind(self) -> str:
        """Return the kind of change as one word: removed, new or changed."""
        if self.new_text is None:
            return "removed"
        return "new" if self.old_text is None else "changed"


class Files:
    """The files of a node whose ``/`` is the folder ``root`` on this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def _here(self, path: str) -> Path:
        """Return the file's path on this machine.

        Symbolic links are resolved as under chroot, so they never lead out of the root. Raises
        :class:`BadInputError`.
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
                raise BadInputError(
                    f"{self._root / path[1:]}: more than {_MAX_LINKS} symbolic links (a loop?)"
                )
        return here

    def text(self, path: str) -> str | None:
        """Return a file's text; None if there is no such file. Raises :class:`BadInputError`."""
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
        """Return the paths of a folder's files; empty if there is no such folder.

        Raises :class:`BadInputError`.
        """
        here = self._here(folder)
        try:
            paths = sorted(f"{folder}/{each.name}" for each in here.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BadInputError(f"{here}: {error.strerror}") from error
        return [path for path in paths if self._here(path).is_file()]

    def shows(self, change: Change) -> bool:
        """Check whether a secret that stays has permissions beyond those of ``change.mode``."""
        here = self._here(change.path)
        there = change.secret and change.new_text is not None and here.exists()
        return there and bool(here.stat().st_mode & 0o777 & ~change.mode)

    def apply(self, change: Change) -> None:
        """Keep a copy of the former text if one is wanted, then make the change.

        Raises :class:`BadInputError`.
        """
        here = self._here(change.path)
        if change.copy is not None and change.old_text is not None:
            self._write(change.copy, change.old_text, 0o600)
        most = change.mode if change.secret else 0o7777
        if change.new_text is not None:
            self._write(change.path, change.new_text, change.mode, most)
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
