"""The last step of ``make release``. It packs Helm's chart again and writes ``SHA256SUMS``.

``helm package`` writes the time into its archive, so two archives of one chart differ. The archives
that this module packs are equal if the charts are.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import sys
import tarfile
import time
from pathlib import Path

from manifests.buildplugin import tarred

SUMS = "SHA256SUMS"


def repacked(chart: bytes, mtime: int) -> bytes:
    """Return a chart's archive with its files sorted, and one time for all of them.

    ``chart`` is an archive of ``helm package``. The time is in seconds since 1970. Raises
    :class:`tarfile.TarError`.
    """
    with tarfile.open(fileobj=io.BytesIO(chart), mode="r:gz") as tar:
        opened = ((entry.name, tar.extractfile(entry)) for entry in tar)
        files = sorted((name, 0o644, file.read()) for name, file in opened if file is not None)
    return gzip.compress(tarred(files, mtime), mtime=0)


def sums(folder: Path) -> str:
    """Return a line for each file of a folder, as ``sha256sum --check`` reads it."""
    lines = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.name != SUMS
    )
    return "".join(lines)


def dated() -> int:
    """Return SOURCE_DATE_EPOCH if it is set, else the current time, in seconds since 1970.

    Raises :class:`ValueError` if SOURCE_DATE_EPOCH is no such number.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if not given:
        return int(time.time())
    if not (given.isascii() and given.isdecimal() and len(given) <= 10):
        allowed = "allowed are seconds since 1970, such as 1700000000"
        raise ValueError(f"SOURCE_DATE_EPOCH: {allowed}, not {given[:60]!r}")
    return int(given)


def main() -> int:
    """Finish the folder of a release. Return 1 if that fails."""
    parser = argparse.ArgumentParser(description="Finish the folder of a release.")
    parser.add_argument("folder", type=Path, help="the files of the release")
    folder = parser.parse_args().folder
    try:
        for chart in folder.glob("*.tgz"):
            chart.write_bytes(repacked(chart.read_bytes(), dated()))
        (folder / SUMS).write_text(sums(folder))
    except (OSError, ValueError, tarfile.TarError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{folder / SUMS}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
