"""Bounded reads of regular files that other programs write while this one runs.

Opening a pipe (a FIFO) blocks until another process opens it for writing, perhaps for ever. Nothing
ends that wait, not even the end of our process. So this module reads regular files only, and reads
at most a given number of bytes.
"""

import errno
import os
import stat
from pathlib import Path


def opened(path: Path) -> int:
    """Return an open descriptor of a regular file, without ever blocking. The caller closes it.

    Raises :class:`OSError`, also if the path leads to a pipe, a device or a folder.
    """
    found = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "this is no regular file", str(path))
    return found


def content(path: Path, most: int) -> bytes:
    """Return the content of a regular file.

    Raises :class:`OSError` if the file cannot be read or has more than ``most`` bytes.
    """
    with os.fdopen(opened(path), "rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return found
