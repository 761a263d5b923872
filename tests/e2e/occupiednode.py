"""A node whose GPUs pods of the test's choice have; only the test reports them."""

from collections.abc import Sequence
from typing import Any

from tests.e2e.cluster import RealCluster
from topology.core.devices import DeviceId, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.machines import machine


class OccupiedNode:
    """A node whose agent reports who holds which GPUs, as the test says."""

    def __init__(self, real: RealCluster, node: NodeTopology) -> None:
        self.real, self.node = real, node
        self.held: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.sequence = 1

    def hold(self, name: str, *gpus: int, **spec: Any) -> None:
        """A pod that runs here with these GPUs, before the node is published."""
        spec = {"priorityClassName": "low", **spec}
        found = self.real.add_pod(name, len(gpus), nodeName=self.node.name, **spec)
        self.held[name] = (found["metadata"]["uid"], gpus)

    def publish(self) -> None:
        """Node and record are there from now on, and the extender knows who runs here."""
        self.real.add_machine(self.node, self._report())
        self.real.until_told(
            self.node.name,
            lambda found: {each["name"] for each in found["pods"]} >= self.held.keys(),
        )

    def let_go(self, *names: str) -> None:
        """The kubelet has ended these pods."""
        for name in names:
            self.real.remove_pod(name)
            del self.held[name]
        self._report_again()

    def admit(self, name: str, *gpus: int, **spec: Any) -> None:
        """Bind a pod by hand; the kubelet gives it these GPUs."""
        self.hold(name, *gpus, **spec)
        self._report_again()

    def evicted(self) -> list[str]:
        """The pods that are being evicted."""
        found = {n: self.real.pod(n) for n in self.held}
        return [n for n, pod in found.items() if pod["metadata"].get("deletionTimestamp")]

    def _report_again(self) -> None:
        self.sequence += 1
        self.real.put_report(self.node.name, self._report())

    def _report(self) -> Report:
        held = [
            Allocation(PodUid(uid), "default", name, "main", "nvidia.com/gpu",
                       tuple(DeviceId(self.node.gpus[p].uuid) for p in gpus))
            for name, (uid, gpus) in self.held.items()
        ]  # fmt: skip
        return Report("boot", self.sequence, allocations=tuple(held))


def half_occupied(real: RealCluster, name: str, sequence: int = 1) -> Report:
    """The report of a DGX-1V: a pod holds all of its GPUs but 1 to 4, which promise one pair."""
    holder = f"holder-of-{name}"
    if sequence == 1:
        real.add_pod(holder, 4, nodeName=name)
    dgx = machine("dgx1-v100").topology(name)
    uid = PodUid(real.pod(holder)["metadata"]["uid"])
    ids = tuple(DeviceId(dgx.gpus[p].uuid) for p in (0, 5, 6, 7))
    held = Allocation(uid, "default", holder, "main", "nvidia.com/gpu", ids)
    return Report("boot", sequence, allocations=(held,))


def linked(node: NodeTopology, gpus: Sequence[int]) -> bool:
    """Whether each two of these GPUs are joined by NVLink."""
    links = node.shape.links
    return all(
        (link := links[a][b]) is not None and link.nvlinks for a in gpus for b in gpus if a != b
    )
