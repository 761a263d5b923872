"""Folders mounted over the machine's own for the processes of one node only.

Kubelet and device plugin have constants in them that lead into folders of the machine. So each of
a node's processes gets a mount namespace in which private folders lie over those; when the process
has ended, its namespace is gone, and nothing of it was ever seen outside. It needs root.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

# Arguments: a file with a mount a line, the folder to begin in, then the command line.
_SCRIPT = """
set -eu
while read -r source target; do mount --bind "$source" "$target"; done < "$1"
cd "$2"
shift 2
exec "$@"
"""


def why_not() -> str:
    """Why there can be no private mounts here; empty where there can."""
    if os.geteuid() != 0:
        return "a node's private mounts need root"
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is missing"
    return ""


class PrivateMounts:
    """Which file or folder lies over which of the machine's own.

    ``folder`` keeps what the processes need to begin. Paths may not contain spaces.
    """

    def __init__(self, folder: Path, mounts: Mapping[str, Path]) -> None:
        self._list = folder / "mounts"
        self._list.write_text("".join(f"{mine} {theirs}\n" for theirs, mine in mounts.items()))
        self._start = folder / "cwd"
        self._start.mkdir()

    def command(self, *command: str) -> Sequence[str]:
        """The command line that runs ``command`` among these mounts, in an empty folder."""
        unshare = ("unshare", "--mount", "--propagation=private", "sh", "-c", _SCRIPT, "sh")
        return (*unshare, str(self._list), str(self._start), *command)
