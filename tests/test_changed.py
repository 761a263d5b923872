"""What ``make check`` runs for a file that has changed."""

from pathlib import Path

import pytest

from tests.changed import ROOT, guards_of


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        pytest.param(
            "topology/core/possiblestates.py",
            ["topology/core/test_possiblestates.py"],
            id="its own",
        ),
        pytest.param(
            "topology/core/admission/devicemanager.py",
            ["topology/core/test_admission.py"],
            id="package's",
        ),
        pytest.param("tests/test_docs.py", ["test_docs.py"], id="a test"),
        pytest.param("tests/e2e/test_map.py", [], id="needs a control plane"),
        pytest.param("tests/nodes.py", [], id="serves tests"),
    ],
)
def test_a_file_has_its_tests(file: str, tests: list[str]) -> None:
    assert guards_of(Path(file)) == [Path("tests") / name for name in tests]


def test_a_file_without_guards_of_its_own_has_those_of_its_folder() -> None:
    found = guards_of(Path("scheduler_extender/explain/wording.py"))
    assert found == sorted(
        path.relative_to(ROOT)
        for path in (ROOT / "tests/scheduler_extender/explain").glob("test_*.py")
    )
