"""The public traces that the simulation replays: where they are published, and their checksums.

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


OPENB = Source(
    "alibaba/clusterdata",
    "50a91c7c74abe3b658188dc78ac1dd302970d40c",
    "Weng et al., Beware of Fragmentation, USENIX ATC 2023",
)
PHILLY = Source(
    "petuum/adaptdl",
    "de25dcc90c350b8ade3a710e437a651a8d2efae6",
    "Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters, USENIX ATC 2019; "
    "condensed from msr-fiddle/philly-traces, CC-BY-4.0, Microsoft",
)


def _openb(name: str, size: int, sha256: str) -> TraceFile:
    file = f"openb_{name}.csv"
    return TraceFile(OPENB, f"cluster-trace-gpu-v2023/csv/{file}", f"openb/{file}", size, sha256)


# The nodes and workloads of openb, and the Philly trace.
FILES = (
    _openb(
        "node_list_gpu_node",
        42353,
        "2beca64b4d3dfa342036a34b56a495c6cef9225db836c81f541282cb1df320b5",
    ),
    _openb(
        "pod_list_default",
        575468,
        "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8",
    ),
    _openb(
        "pod_list_multigpu20",
        271530,
        "d9ec6f6c74fb980cc0b81239470c6353fceea077ea9abd610003b604c7cc2b01",
    ),
    _openb(
        "pod_list_multigpu50",
        297219,
        "206f2f5959db30ecb7c44e7f13197c8ec50b7a35558ad3777cc3662ef0fe5373",
    ),
    _openb(
        "pod_list_gpushare40",
        572662,
        "d83ce79a4eb6987524bedbb0c65e41aed3a36bf6c1b78b86234c3687a07e1d40",
    ),
    _openb(
        "pod_list_gpushare100",
        561220,
        "12dbc07d6a49bf8641e2275a2ff5bf7be74b5df7d148d531e135b140b95f9a3d",
    ),
    _openb(
        "pod_list_gpuspec10",
        579461,
        "2dc7e4cb9480484f08539720b433a9ec9ab5d76b396f3f7557c53a2ff78a7611",
    ),
    _openb(
        "pod_list_cpu050",
        525811,
        "747f43247bffc2b0bb081d7f61f0705ca8d390dafc0b647e642c92f3baf3ba1e",
    ),
    _openb(
        "pod_list_cpu250",
        663708,
        "134c21ff96d57533df8a37b67632972884fec9396e77cd0898ddc370cc8e607d",
    ),
    TraceFile(
        PHILLY,
        "simulator/traces/philly.csv",
        "philly/philly.csv",
        3444496,
        "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da",
    ),
)


def is_there(file: TraceFile, folder: Path) -> bool:
    """Whether the folder has this very file already."""
    path = folder / file.place
    try:
        return path.stat().st_size == file.size and _hashed(path) == file.sha256
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
    digest = hashlib.sha256(content).hexdigest()
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


def _hashed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
