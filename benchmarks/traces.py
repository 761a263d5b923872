"""The traces that are replayed: where they are here, where the public one is published.

Each file is named by repository, commit and path, and by its length and SHA-256, so what is fetched
is byte for byte what our tables were made from, whoever serves it.
"""

import hashlib
import os
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import urllib3

TIMEOUT = urllib3.Timeout(connect=10.0, read=60.0)  # seconds without an answer


class TraceMissingError(Exception):
    """A trace is not here; the message says where it is looked for."""


class FetchError(Exception):
    """A file could not be fetched, or is another one; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Source:
    """A public Git repository at one commit, and who is to be cited for what it publishes."""

    repository: str
    commit: str
    cite: str


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file: where it is published, where the simulation looks for it, its bytes and SHA-256."""

    source: Source
    path: str
    place: str
    size: int
    sha256: str

    def url(self, origin: str) -> str:
        """Where an origin serves it."""
        return f"{origin.rstrip('/')}/{self.source.repository}/{self.source.commit}/{self.path}"


PHILLY = Source(
    "petuum/adaptdl",
    "de25dcc90c350b8ade3a710e437a651a8d2efae6",
    "Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters, USENIX ATC 2019; "
    "condensed from msr-fiddle/philly-traces, CC-BY-4.0, Microsoft",
)


FILES = (
    TraceFile(
        PHILLY,
        "simulator/traces/philly.csv",
        "philly/philly.csv",
        3444496,
        "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da",
    ),
)


def trace(place: str) -> Path:
    """A file of the traces: in ``$GPU_TOPOLOGY_SHARED``, or in ``shared`` beside the checkout.

    Raises :class:`TraceMissingError`.
    """
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("GPU_TOPOLOGY_SHARED", str(root.parent / "shared")))
    path = folder / "traces" / place
    if not path.is_file():
        raise TraceMissingError(
            f"{path}: no such file (set GPU_TOPOLOGY_SHARED; docs/method.md says where the traces "
            "come from)"
        )
    return path


def is_there(file: TraceFile, folder: Path) -> bool:
    """Whether the folder has this very file already."""
    path = folder / file.place
    try:
        return path.stat().st_size == file.size and _hashed(path.read_bytes()) == file.sha256
    except FileNotFoundError:
        return False


def fetch(file: TraceFile, folder: Path, origin: str) -> Path:
    """Fetch a file into a folder and return its path; a file with other bytes is never left there.

    At most its known length is read. Raises :class:`FetchError`, and :class:`OSError` where the
    folder cannot be written.
    """
    path = folder / file.place
    path.parent.mkdir(parents=True, exist_ok=True)
    url = file.url(origin)
    content = _read(url, file.size + 1)
    if len(content) > file.size:
        raise FetchError(f"{url}: longer than the {file.size:,} bytes of {file.place}")
    digest = _hashed(content)
    if digest != file.sha256:
        raise FetchError(
            f"{url}: SHA-256 is {digest} over {len(content):,} bytes, expected is "
            f"{file.sha256} over {file.size:,}"
        )
    with tempfile.TemporaryDirectory(dir=path.parent) as beside:
        partly = Path(beside) / path.name
        partly.write_bytes(content)
        partly.replace(path)
    return path


def _read(url: str, most: int) -> bytes:
    """What a server sends, at most so many bytes of it."""
    try:
        answer = _pool().request("GET", url, preload_content=False, retries=3)
        with closing(answer):
            if answer.status != 200:
                raise FetchError(f"{url}: HTTP {answer.status}")
            return answer.read(most)
    except urllib3.exceptions.HTTPError as error:
        reason = getattr(error, "reason", None) or error
        raise FetchError(f"{url}: {reason}") from error


def _pool() -> urllib3.PoolManager | urllib3.ProxyManager:
    """Through the proxy that the environment names, if any."""
    proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    if proxy:
        return urllib3.ProxyManager(proxy, timeout=TIMEOUT)
    return urllib3.PoolManager(timeout=TIMEOUT)


def _hashed(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
