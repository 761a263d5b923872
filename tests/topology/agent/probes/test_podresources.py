"""The kubelet's PodResources API over a real socket: what is read, and how failures end."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.kubelet import GPU, FakeKubelet
from topology.agent.model.exclusive import Allocatable
from topology.agent.model.podentries import Entry, Held
from topology.agent.probes.podresources import KubeletBusyError, KubeletDownError, PodResources
from topology.core.devices import DeviceId
from topology.core.numa import MemoryBlock, cpu_set


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    with tempfile.TemporaryDirectory(prefix="agent-") as folder, FakeKubelet(Path(folder)) as found:
        yield found


@pytest.fixture
def client(kubelet: FakeKubelet) -> Iterator[PodResources]:
    with ExitStack() as stack:
        found = PodResources(kubelet.socket)
        stack.callback(found.close)
        yield found


def held(container: str, resource: str, *ids: str) -> Held:
    return Held(container, resource, tuple(map(DeviceId, ids)))


def test_holders_are_read_in_one_order(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.show("ns", "b", {"main": {GPU: ["GPU-2", "GPU-1"]}, "idle": {}})
    kubelet.show("ns", "a", {"main": {GPU: ["GPU-0::1"]}}, claims={"main": "gpu-3"})
    kubelet.show("ns", "plain", {"main": {"rdma/hca": ["mlx5_0"]}})
    assert client.entries() == [
        Entry("ns", "a", (
            held("main", GPU, "GPU-0::1"), held("main", "gpu.nvidia.com", "n/gpu-3"),
        )),
        Entry("ns", "b", (held("main", GPU, "GPU-1", "GPU-2"),)),
        Entry("ns", "plain"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "ids", "of_gpus"),
    [
        pytest.param(GPU, ["nvidia0"], True, id="by its name"),
        pytest.param("nvidia.com/mig-1g.5gb", ["MIG-1"], True, id="MIG devices"),
        pytest.param("example.com/gpu", ["GPU-0", "x1"], True, id="by one of its ids"),
        pytest.param("rdma/hca", ["mlx5_0"], False, id="another plugin's"),
    ],
)
def test_what_it_hands_out_from(
    kubelet: FakeKubelet, client: PodResources, resource: str, ids: list[str], of_gpus: bool
) -> None:
    kubelet.allocatable(*ids, resource=resource)
    assert client.allocatable() == ({resource: frozenset(ids)} if of_gpus else {})


def test_cpus_and_memory_of_every_pod_are_read(kubelet: FakeKubelet, client: PodResources) -> None:
    """Those of a pod's containers together, in one order."""
    kubelet.show(
        "ns", "a", {"main": {GPU: ["GPU-0"]}, "side": {}},
        cpus={"main": [9, 1], "side": [3]},
        memory={"main": [("memory", 5, [1, 0]), ("hugepages-1Gi", 7, [1])],
                "side": [("memory", 2, [0])]},
    )  # fmt: skip
    kubelet.show("ns", "plain", {"main": {}}, cpus={"main": [4, 5]})
    kubelet.show("ns", "shared", {"main": {}})
    assert client.entries() == [
        Entry(
            "ns", "a", (held("main", GPU, "GPU-0"),), cpu_set("1,3,9"),
            (
                MemoryBlock("hugepages-1Gi", 7, (1,)),
                MemoryBlock("memory", 2, (0,)),
                MemoryBlock("memory", 5, (0, 1)),
            ),
        ),
        Entry("ns", "plain", (), cpu_set("4-5")),
        Entry("ns", "shared"),
    ]  # fmt: skip


def test_what_pods_may_have_for_their_own(kubelet: FakeKubelet, client: PodResources) -> None:
    assert client.exclusive == Allocatable(), "before the first question"
    client.allocatable()
    assert client.exclusive == Allocatable(), "no manager is static"
    kubelet.cpus = [3, 1, 2, 4096]
    kubelet.memory = [("memory", 7, [1]), ("memory", 5, [0]), ("hugepages-2Mi", 4, [0])]
    client.allocatable()
    assert client.exclusive == Allocatable(
        cpu_set("1-3"), {(0, "memory"): 5, (0, "hugepages-2Mi"): 4, (1, "memory"): 7}
    )


def test_a_kubelet_that_is_away_is_down_and_comes_back_as_another(
    kubelet: FakeKubelet, client: PodResources
) -> None:
    kubelet.show("ns", "a", {"main": {GPU: ["GPU-0"]}})
    assert len(client.entries()) == 1
    kubelet.stop()
    with pytest.raises(KubeletDownError, match=r"kubelet\.sock: No such file"):
        client.entries()
    kubelet.start()
    assert len(client.entries()) == 1
    assert client.restarts == 1
    kubelet.stop()
    kubelet.start()
    assert len(client.entries()) == 1
    assert client.restarts == 2, "it was never seen away"


def test_a_busy_kubelet_asks_to_be_left_alone(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.exhaust(1)
    with pytest.raises(KubeletBusyError, match="RESOURCE_EXHAUSTED"):
        client.entries()
    assert client.entries() == []
    assert client.restarts == 0


def test_a_socket_without_a_listener_is_down(tmp_path: Path) -> None:
    client = PodResources(tmp_path / "kubelet.sock")
    with pytest.raises(KubeletDownError):
        client.allocatable()
    client.close()


def test_a_socket_whose_path_is_no_text_is_down() -> None:
    with tempfile.TemporaryDirectory(prefix="agent-") as folder:
        path = Path(os.fsdecode(os.fsencode(folder) + b"/\xff.sock"))
        path.touch()
        client = PodResources(path)
        with pytest.raises(KubeletDownError, match="the kubelet's socket: 'utf-8' codec"):
            client.entries()
        client.close()
