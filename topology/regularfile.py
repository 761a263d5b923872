"""Files that are read while a program runs, and that somebody else writes.

Opening a pipe (a FIFO) waits until somebody writes to it, perhaps for ever, and nothing ends that
wait, not even the end of the process. So only regular files are read, up to a bound.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def opened(path: Path) -> int:
    """A descriptor of a regular file; the caller closes it. Never waits for anybody.

    Raises :class:`OSError`, also if the path leads to a pipe, a device or a folder.
    """
    found = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "this is no regular file", str(path))
    return found


def content(path: Path, most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes. Raises :class:`OSError`."""
    with os.fdopen(opened(path), "rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return found
