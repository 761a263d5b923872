"""What NVIDIA's plugin serves of MIG devices, and what our record says of them: a short run.

Like the plugin on a node, its program reads files whose names are constants, so it runs among
private mounts and needs root. The long run is a part of ``make differential``.
"""

from collections.abc import Iterator

import pytest

from tests.differential.enumeration import Bench, Machine, lines, run
from tests.differential.nvidiaplugin import NvidiaEnumeration, plugin_program
from tests.differential.requiring import building, missing
from tests.e2e.privatemounts import why_not
from tests.fakes.nvml import CompilerMissing, MigInstance
from topology.machines import machine
from topology.machines.mig import nominal_memory

pytestmark = pytest.mark.long

MACHINES = 80
SEED = 1_000_000
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A machine that can be any machine."""
    try:
        return Bench(tmp_path_factory.mktemp("bench"))
    except CompilerMissing as reason:
        missing(str(reason))


@pytest.fixture(scope="module")
def plugin(bench: Bench) -> Iterator[NvidiaEnumeration]:
    """NVIDIA's code on that machine; built the first time."""
    if reason := why_not():
        missing(reason)
    with building():
        program = plugin_program("enumeration")
    with bench.plugin(program) as found:
        yield found


def test_the_record_names_what_the_plugin_serves(
    bench: Bench, plugin: NvidiaEnumeration, capsys: pytest.CaptureFixture[str]
) -> None:
    tallies = run(MACHINES, SEED, bench, plugin)
    with capsys.disabled():
        print("", *lines(tallies), sep="\n")
    assert not [words for tally in tallies.values() for words in tally.found]
    assert sum(tally.machines for tally in tallies.values()) == MACHINES
    assert tallies["mixed, some"].slices > 20
    assert tallies["single, all GPUs in slices"].slices > 20
    assert any(tally.idle for tally in tallies.values())


def test_a_record_of_other_names_is_found_out(
    bench: Bench, plugin: NvidiaEnumeration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that is planted: every instance is served under its profile's own name."""
    monkeypatch.setattr(
        "topology.core.mig._served_as", lambda profile, _: profile.replace("+", ".")
    )
    tallies = run(40, SEED, bench, plugin)
    found = [words for tally in tallies.values() for words in tally.found]
    assert any("not known" in words for words in found)
    assert any("is not to be relied on" in words for words in found)  # the agent sees it, too


def one_gpu(*profiles: str, strategy: str = "mixed") -> Machine:
    """An H100 with these MIG devices."""
    found = []
    for number, profile in enumerate(profiles):
        memory = nominal_memory(profile)
        assert memory is not None
        found.append(MigInstance(f"MIG-{number}", profile, memory))
    topology = machine("h100-pcie-1").topology("n")
    return Machine("h100-pcie-1", topology, (tuple(found),), strategy, {})


def test_before_release_0_20_a_suffix_does_not_make_a_resource(
    bench: Bench, plugin: NvidiaEnumeration
) -> None:
    """What ``topology.core.mig`` reads from the plugin's source, seen."""
    played = one_gpu("1g.10gb+me", "1g.10gb", "1c.2g.20gb", "1g.20gb")
    bench.play(played)
    served = plugin.serves(played.configuration)
    assert not isinstance(served, str), served
    assert {name: [device.id for device in found] for name, found in served.items()} == {
        "nvidia.com/mig-1g.10gb": ["MIG-0", "MIG-1"],
        "nvidia.com/mig-2g.20gb": ["MIG-2"],
        "nvidia.com/mig-1g.20gb": ["MIG-3"],
    }


@pytest.mark.parametrize(
    ("profiles", "reason"),
    [
        pytest.param(("1g.10gb", "2g.20gb"), "more than one MIG device type", id="two profiles"),
        pytest.param((), "has no MIG devices configured", id="none"),
    ],
)
def test_the_strategy_single_wants_one_profile(
    profiles: tuple[str, ...], reason: str, bench: Bench, plugin: NvidiaEnumeration
) -> None:
    played = one_gpu(*profiles, strategy="single")
    bench.play(played)
    answer = plugin.serves(played.configuration)
    assert isinstance(answer, str)
    assert reason in answer
