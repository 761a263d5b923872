"""Over which states of the driver, and which requests, NVIDIA's plugin refuses; and the model too.

The plugin is asked on its own socket. What would refuse a pod under a kubelet is an error here.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import grpc
import pytest

from tests.e2e.catalogue import versions
from tests.e2e.deviceplugin import DevicePlugin
from tests.e2e.nvidiastack import MPS, PluginSettings
from tests.e2e.standaloneplugin import StandalonePlugin
from tests.fakes.nvml import MigInstance
from tests.waiting import eventually
from topology.core.admission import device_manager_of
from topology.core.allocators import Call
from topology.core.devices import MIB, GpuResource
from topology.core.graph import AllocatorConfig, plugin_version
from topology.core.report import MissingGpu
from topology.machines import machine

pytestmark = pytest.mark.e2e
MACHINE = "a30-4-bridged"
HIT = 2  # the GPU that is lost, by index and position
UNWATCHED = (("DP_DISABLE_HEALTHCHECKS", "all"),)

Make = Callable[[PluginSettings], StandalonePlugin]


@pytest.fixture
def lone(nvidia_programs: Callable[[str], Path]) -> Iterator[Make]:
    """Makes the plugin of one machine with these settings."""
    made: list[StandalonePlugin] = []

    def make(settings: PluginSettings) -> StandalonePlugin:
        nvidia_programs(settings.version)
        described = machine(MACHINE)
        plugin = StandalonePlugin(described.topology("lone"), described, settings)
        made.append(plugin.__enter__())
        return plugin

    yield make
    for plugin in reversed(made):
        plugin.__exit__(None, None, None)


def answers(client: DevicePlugin, available: Collection[str], size: int) -> bool:
    """Whether the plugin says what it prefers."""
    try:
        return len(client.preferred(available, size)) == size
    except grpc.RpcError:
        return False


def check_whole_gpus(plugin: StandalonePlugin, client: DevicePlugin, *, counted: bool) -> int:
    """Ask about every set of free GPUs and every count; compare the model, and count refusals."""
    topology = plugin.silicon.topology
    version = plugin.nvidia.settings.version
    uuids = [str(gpu.uuid) for gpu in topology.gpus]
    missing = (MissingGpu(uuids[HIT], counted),)
    config = AllocatorConfig("best-effort", version)
    answer = device_manager_of(replace(topology, allocator=config), GpuResource(), missing)
    refused = 0
    for many in range(1, len(uuids) + 1):
        for free in combinations(range(len(uuids)), many):
            for size in range(1, many + 1):
                mask = sum(1 << p for p in free)
                call = Call(answer.shape, mask, size, version=plugin_version(version))
                answered = answers(client, [uuids[p] for p in free], size)
                expected = answer.allocator.outcomes(call)
                assert answered or expected.hazards, (free, size)
                if expected.sets == ():
                    assert not answered, (free, size)
                refused += not answered
    return refused


ASKED = 32  # questions in `check_whole_gpus`: of four GPUs every set, and every count of each


@pytest.mark.parametrize("version", versions())
def test_a_lost_gpu_makes_it_refuse_whole_gpus_whichever_are_asked_about(
    lone: Make, version: str
) -> None:
    plugin = lone(PluginSettings(version, environment=UNWATCHED))
    client = plugin.start()
    uuids = [str(gpu.uuid) for gpu in plugin.silicon.topology.gpus]
    plugin.silicon.nvml.lose(HIT)
    assert check_whole_gpus(plugin, client, counted=True) == ASKED
    plugin.silicon.nvml.restore(HIT)
    assert answers(client, uuids, 2)


@pytest.mark.parametrize("function", ["nvmlDeviceGetName", "nvmlDeviceGetPciInfo"])
def test_any_error_of_a_gpu_is_as_good_as_a_lost_one(lone: Make, function: str) -> None:
    plugin = lone(PluginSettings(environment=UNWATCHED))
    client = plugin.start()
    plugin.silicon.nvml.fail(function, 999, HIT)
    assert check_whole_gpus(plugin, client, counted=True) == ASKED


@pytest.mark.parametrize("version", versions())
def test_a_gpu_that_is_gone_makes_it_refuse_where_it_is_asked_about(
    lone: Make, version: str
) -> None:
    """The plugin opens the driver at each call, since health watching is off."""
    plugin = lone(PluginSettings(version, environment=UNWATCHED))
    client = plugin.start()
    plugin.silicon.nvml.remove(HIT)
    with_it = sum(
        len(free)
        for many in range(1, 5)
        for free in combinations(range(4), many)
        if HIT in free
    )  # fmt: skip
    assert check_whole_gpus(plugin, client, counted=False) == with_it


@pytest.mark.parametrize("version", versions())
def test_a_plugin_that_watches_health_does_not_notice_a_lost_gpu(lone: Make, version: str) -> None:
    """It opened the driver while the GPU was there, and keeps it open: it refuses everything."""
    plugin = lone(PluginSettings(version))
    client = plugin.start()

    def watches() -> bool:
        plugin.silicon.nvml.xid(0, 48)
        return any(not device.healthy for device in client.devices())

    eventually(watches, "the plugin watches health", every=0.5, detail=plugin.log)
    plugin.silicon.nvml.remove(HIT)
    assert check_whole_gpus(plugin, client, counted=False) == ASKED


@pytest.mark.parametrize("version", versions())
def test_a_call_that_hangs_over_a_gpu_leaves_every_question_without_an_answer(
    lone: Make, version: str
) -> None:
    """So the kubelet waits with the pod, and with all pods that come after it."""
    plugin = lone(PluginSettings(version, environment=UNWATCHED))
    client = plugin.start()
    others = [str(gpu.uuid) for i, gpu in enumerate(plugin.silicon.topology.gpus) if i != HIT]
    assert answers(client, others, 2)
    plugin.silicon.nvml.hang("nvmlDeviceGetPciInfo", HIT)
    with pytest.raises(grpc.RpcError) as raised:
        client.preferred(others, 2, timeout=10)
    # Both sides count the seconds: whoever is first says so.
    assert raised.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
    plugin.silicon.nvml.lift()
    assert answers(client, others, 2)


def time_slicing(option: str = "") -> str:
    return sharing("timeSlicing", option)


def sharing(strategy: str, option: str = "") -> str:
    """The plugin's configuration for two shares of each GPU."""
    return f"""
version: v1
sharing:
  {strategy}:
    {option}
    resources: [{{name: nvidia.com/gpu, replicas: 2}}]
"""


@pytest.mark.parametrize("version", versions())
def test_it_chooses_among_shares_without_the_driver(lone: Make, version: str) -> None:
    plugin = lone(PluginSettings(version, config=time_slicing(), environment=UNWATCHED))
    client = plugin.start()
    plugin.silicon.nvml.lose(HIT)
    ids = [device.id for device in client.devices()]
    assert len(ids) == 8
    assert all(answers(client, ids, size) for size in range(1, 9))


def test_it_chooses_among_mig_devices_without_the_driver(lone: Make) -> None:
    """But not among the whole GPUs of the same node."""
    config = "version: v1\nflags: {migStrategy: mixed}\n"
    plugin = lone(PluginSettings(config=config, environment=UNWATCHED))
    parts = [MigInstance(f"MIG-{i}", "1g.6gb", 5952 * MIB) for i in range(2)]
    plugin.silicon.nvml.mig(0, list(parts))
    client = plugin.start("mig-1g.6gb")
    whole = plugin.start_client("gpu")
    plugin.silicon.nvml.lose(HIT)
    assert answers(client, [device.id for device in client.devices()], 2)
    assert not answers(whole, [device.id for device in whole.devices()], 1)


# --- More than one share --------------------------------------------------------------------------


def allocates(client: DevicePlugin, ids: Collection[str]) -> str:
    """Why the plugin refuses a container these devices; empty where it does not."""
    try:
        client.allocate(ids)
    except grpc.RpcError as error:
        return str(error.details())
    return ""


@pytest.mark.parametrize("version", versions())
@pytest.mark.parametrize(
    ("strategy", "option", "refused"),
    [
        pytest.param("timeSlicing", "", False, id="time-slicing"),
        pytest.param("timeSlicing", "failRequestsGreaterThanOne: false", False, id="told to give"),
        pytest.param("timeSlicing", "failRequestsGreaterThanOne: true", True, id="told to refuse"),
        pytest.param("mps", "", True, id="MPS"),
        pytest.param("mps", "failRequestsGreaterThanOne: false", True, id="MPS, told to give"),
    ],
)
def test_whether_a_container_gets_several_shares(
    lone: Make, version: str, strategy: str, option: str, refused: bool
) -> None:
    plugin = lone(PluginSettings(version, config=sharing(strategy, option), environment=MPS))
    client = plugin.start()
    ids = sorted(device.id for device in client.devices())
    assert len(ids) == 8
    assert allocates(client, ids[:1]) == ""
    message = allocates(client, ids[:2])
    assert ("maximum request size for shared resources is 1" in message) == refused
    assert bool(message) == refused
