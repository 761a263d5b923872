"""Each module has a test file of its name, or its package has one; those without do not grow."""

from tests.changed import ROOT, mirrors

PACKAGES = ("topology", "scheduler_extender", "benchmarks")
WITHOUT = 145  # at most so many modules have none: lower it when they become fewer


def test_no_more_modules_are_without_a_test_file_of_their_name() -> None:
    modules = sorted(
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.name.startswith("__") and path.parent.name != "proto"
    )
    without = [str(path) for path in modules if not mirrors(path)]
    assert len(without) <= WITHOUT, "without a test file of their name:\n" + "\n".join(without)
