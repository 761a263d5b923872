"""``python -m benchmarks following`` over a small cluster: what it prints was measured."""

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.__main__ import app


def test_a_small_cluster_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "following.json"
    size = ["--nodes", "20", "--pods", "100", "--reports", "20", "--seconds", "0.2"]
    done = CliRunner().invoke(app, ["following", *size, "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "filter, burst" in done.output
    found = json.loads(file.read_text())
    assert 0 < found["ready_s"] < 300
    assert 20 < found["ready_mib"] <= found["peak_mib"] < 1_000
    assert [row["state"] for row in found["rows"]] == ["quiet", "burst"]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in found["rows"])
