"""``python -m benchmarks traces``, from a server on loopback that serves what it is told to."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks import traces as listed
from benchmarks.__main__ import app
from benchmarks.traces import FILES, FetchError, Source, TraceFile, fetch, is_there
from scheduler_extender.cli.commandline import run
from tests import recorded
from tests.commands import Done, asked

SOURCE = Source("somebody/traces", "0" * 40, "Somebody, Traces, 2023")
TEXT = b"name,cpu\na,1\n" * 10_000
FILE = TraceFile(
    SOURCE, "csv/jobs.csv", "philly/jobs.csv", len(TEXT), hashlib.sha256(TEXT).hexdigest()
)
ADDRESS = f"/somebody/traces/{'0' * 40}/csv/jobs.csv"


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """A server of these files: its URL, and the paths that it was asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            body = files.get(self.path)
            self.send_response(HTTPStatus.OK if body is not None else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", paths
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of what is fetched has one small file; no proxy stands before loopback."""
    monkeypatch.setattr(listed, "FILES", (FILE,))
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


def traces(folder: Path, origin: str) -> Done:
    words = ("traces", "--into", folder, "--origin", origin)
    return asked(lambda: run(app, "python -m benchmarks"), *words)


def test_a_file_is_fetched_once_and_lies_where_the_simulation_looks(tmp_path: Path) -> None:
    with serving({ADDRESS: TEXT}) as (origin, paths):
        done = traces(tmp_path, origin)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "traces" / "philly" / "jobs.csv").read_bytes() == TEXT
        assert f"export GPU_TOPOLOGY_SHARED={tmp_path}" in done.stdout
        assert "from somebody/traces at 0000000: Somebody, Traces, 2023" in done.stdout
        again = traces(tmp_path, f"{origin}/")
        assert "philly/jobs.csv: is there" in again.stdout
    assert paths == [ADDRESS]


@pytest.mark.parametrize(
    ("served", "said"),
    [
        ({}, "HTTP 404"),
        ({ADDRESS: TEXT[:-1] + b"?"}, "SHA-256 is"),
        ({ADDRESS: TEXT[:-1]}, f"over {len(TEXT) - 1:,} bytes, expected is {FILE.sha256}"),
        ({ADDRESS: TEXT + b"x"}, f"longer than the {len(TEXT):,} bytes of philly/jobs.csv"),
    ],
    ids=["not there", "changed", "shorter", "longer"],
)
def test_another_file_is_refused_and_not_left(
    served: Mapping[str, bytes], said: str, tmp_path: Path
) -> None:
    with serving(served) as (origin, _):
        done = traces(tmp_path, origin)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {origin}{ADDRESS}: ")
    assert said in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_that_somebody_changed_is_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / FILE.place
    path.parent.mkdir()
    path.write_bytes(TEXT.replace(b"a,1", b"a,2"))
    assert not is_there(FILE, tmp_path)
    with serving({ADDRESS: TEXT}) as (origin, _):
        assert fetch(FILE, tmp_path, origin) == path
    assert is_there(FILE, tmp_path)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with serving({}) as (origin, _):
        pass
    with pytest.raises(FetchError, match=r"jobs\.csv: "):
        fetch(FILE, tmp_path, origin)


def test_bad_words(tmp_path: Path) -> None:
    assert "does not begin with https:// or http://" in traces(tmp_path, "ftp://x").stderr
    (tmp_path / "file").write_text("")
    done = traces(tmp_path / "file", "http://127.0.0.1:9")
    assert (done.returncode, "--into: " in done.stderr) == (2, True)


def test_the_list_has_what_the_simulation_reads() -> None:
    assert [file.place for file in FILES] == ["philly/philly.csv"]
    assert {len(file.source.commit) for file in FILES} == {40}


@recorded.needs("traces", "philly")
@pytest.mark.parametrize("file", FILES, ids=[file.place for file in FILES])
def test_the_checksums_are_those_of_the_traces_that_our_tables_were_made_from(
    file: TraceFile,
) -> None:
    assert is_there(file, recorded.SHARED / "traces")
