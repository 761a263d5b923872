"""Our model of shared GPUs and MIG instances beside NVIDIA's own code: a short run.

Where the program cannot be built these tests skip and say why, as those of the managers do. The
long run is a part of ``make differential``.
"""

from collections.abc import Iterator

import pytest

from tests.differential.choices import KINDS, lines, run
from tests.differential.nvidiaplugin import SOURCES, VERSION, NvidiaPlugin, plugin_program
from tests.differential.requiring import building
from topology.core.graph import AllocatorConfig

pytestmark = pytest.mark.long

QUESTIONS = 1500
SEED = 1_000_000


@pytest.fixture(scope="module")
def plugin() -> Iterator[NvidiaPlugin]:
    """NVIDIA's code; built the first time."""
    with building():
        program = plugin_program()
    with NvidiaPlugin(program) as found:
        yield found


def test_whatever_nvidias_plugin_chooses_was_predicted(
    plugin: NvidiaPlugin, capsys: pytest.CaptureFixture[str]
) -> None:
    tallies = run(QUESTIONS, SEED, plugin)
    with capsys.disabled():
        print("\n" + "\n".join(lines(tallies)))
    assert [words for tally in tallies.values() for words in tally.found] == []
    assert set(tallies) == set(KINDS)
    assert all(tally.questions > QUESTIONS / 20 for tally in tallies.values())
    shared = tallies["time-slicing"]
    assert shared.single > 0.25 * shared.questions  # "anything may come" is sound and worth nothing
    assert shared.refused > 0
    assert tallies["mps"].refused > 0


def test_a_model_of_another_policy_is_found_out(
    plugin: NvidiaPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that is planted: the plugin distributes, and the record says that it packs."""

    def packs(_: str, version: str, manager: str, scope: str) -> AllocatorConfig:
        return AllocatorConfig("packed", version, manager, scope)

    monkeypatch.setattr("tests.differential.choices.AllocatorConfig", packs)
    tallies = run(300, SEED, plugin)
    assert len(tallies["time-slicing"].found) > 5


def test_the_version_is_that_of_the_module() -> None:
    assert f"k8s-device-plugin {VERSION}\n" in (SOURCES / "go.mod").read_text()
