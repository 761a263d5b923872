"""``python -m benchmarks dra`` over a small cluster: what it prints was measured."""

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.__main__ import app


def test_nodes_with_dra_are_measured_beside_others(tmp_path: Path) -> None:
    file = tmp_path / "dra.json"
    done = CliRunner().invoke(app, ["dra", "--nodes", "16", "--claims", "200", "--json", str(file)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    kinds = {(row["pod"], row["verb"], row["state"]) for row in found["rows"]}
    assert len(kinds) == len(found["rows"]) == 8
    assert all(row["ratio"] > 0 for row in found["rows"])
    assert [row["what"] for row in found["objects"]] == [
        "16 ResourceSlices",
        "200 ResourceClaims",
    ]
