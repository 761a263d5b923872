"""NVIDIA's plugin, a real kubelet and our agent on NVIDIA's own mock of the driver.

The fake of ``tests/fakes/nvml`` stays for what the mock cannot: calls that hang, sixteen GPUs, MIG
instances, PCIe classes other than PIX, PHB and SYS.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import grpc
import pytest

from tests.e2e.building import NEWEST
from tests.e2e.nvidiastack import PluginSettings
from tests.e2e.onenode import create, phase, placement, record, remove, run, stays_away
from tests.e2e.playedmachine import PlayedMachine
from tests.e2e.realnodes import RealNode, RealNodes
from tests.e2e.standaloneplugin import StandalonePlugin
from tests.e2e.test_plugin import mask, questions
from tests.nvidiamock import NvidiaMock
from tests.topology.agent.test_nvidia_mock import record_of
from tests.waiting import eventually
from topology.core.allocators import Call
from topology.core.allocators.best_effort import BEST_EFFORT, PADDED
from topology.core.graph import plugin_version
from topology.machines import machine

pytestmark = pytest.mark.e2e
NODE = "mocked"
OFF = {"fabric": {"state": "in_progress"}}


def on_the_mock(silicon: PlayedMachine) -> None:
    """The driver is NVIDIA's mock of an HGX H100."""
    silicon.play_mock("h100")


NODES = {NODE: RealNode("dgx-h100", prepare=on_the_mock)}


@pytest.fixture
def mock(real_nodes: RealNodes) -> Iterator[NvidiaMock]:
    found = real_nodes.kubelets[NODE].silicon.mock
    assert found is not None
    yield found
    found.has({})


def health(nodes: RealNodes) -> dict[int, str]:
    """What the record says of GPUs that are not well, by index."""
    found = record(nodes, NODE)
    index = {gpu.uuid: gpu.index for gpu in found.topology.gpus}
    return {index[h.uuid]: h.reason for h in found.report.health} if found.report else {}


def test_linked_gpus_are_promised_and_given(real_nodes: RealNodes) -> None:
    ids = run(real_nodes, NODE, "linked", 4, {"link": "nvlink"})
    promised = placement(real_nodes.cluster.pod("linked"))
    assert promised["verdict"] == "guaranteed"
    assert "setsOmitted" in promised or (
        list(real_nodes.kubelets[NODE].positions(ids)) in promised["sets"]
    )
    remove(real_nodes, NODE, "linked")


def test_a_gpu_off_its_fabric_has_no_nvlinks_until_it_is_back(
    real_nodes: RealNodes, mock: NvidiaMock
) -> None:
    mock.has({3: OFF})
    real_nodes.cluster.until(
        lambda: health(real_nodes) == {3: "FabricNotReady"}, "the record says so"
    )
    create(real_nodes, NODE, "whole", 8, {"link": "nvlink"})
    stays_away(real_nodes, "whole", "the NVLink fabric is not ready for GPU 3")
    run(real_nodes, NODE, "plain", 8)
    remove(real_nodes, NODE, "plain")
    mock.has({})
    real_nodes.cluster.until(lambda: health(real_nodes) == {}, "all is well")
    real_nodes.cluster.until(lambda: phase(real_nodes, "whole") == "Running", "it runs")
    remove(real_nodes, NODE, "whole")


@pytest.mark.parametrize(("name", "profile"), [("dgx-h100", "h100"), ("dgx-a100", "a100")])
def test_what_the_plugin_prefers_lies_in_the_outcomes_of_the_agents_record(
    nvidia_programs: Callable[[str], Path], name: str, profile: str
) -> None:
    nvidia_programs(NEWEST)
    described = machine(name)
    with ExitStack() as stack:
        plugin = stack.enter_context(
            StandalonePlugin(described.topology("lone"), described, PluginSettings(NEWEST))
        )
        driver = plugin.silicon.play_mock(profile)
        shape = record_of(Path(driver.environment["MOCK_NVML_CONFIG"])).topology.shape
        client = plugin.start()
        devices = {device.id: device for device in client.devices()}
        assert sorted(devices) == sorted(driver.uuids)
        assert all(device.healthy for device in devices.values())
        for asked in questions(Random(7), len(driver.uuids)):
            predicted = BEST_EFFORT.outcomes(
                Call(
                    shape,
                    mask(asked.available),
                    asked.size,
                    mask(asked.required),
                    version=plugin_version(NEWEST),
                )
            )
            try:
                available = [driver.uuids[p] for p in asked.available]
                required = [driver.uuids[p] for p in asked.required]
                found = client.preferred(available, asked.size, required)
            except grpc.RpcError:
                eventually(lambda: not plugin.alive(), "the plugin has died", detail=plugin.log)
                assert PADDED in predicted.hazards, asked
                client = plugin.start()
                continue
            answer = {driver.uuids.index(device) for device in found}
            assert predicted.sets is None or mask(answer) in predicted.sets, (asked, answer)
