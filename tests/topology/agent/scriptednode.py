"""A node as values and the agent on it, played on a clock that no thread waits for.

A story is a table of moments: at this time something happens, or at this time this is published.
Between two rows the agent takes its turns when they are due, as the service would take them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.topology.agent.entries import GPU, entry, pod
from topology.agent.loop import Clock, NodeAgent, Probes, SyncResult
from topology.agent.model.exclusive import Allocatable
from topology.agent.model.nodecontext import KubeletConfig, NodeContext, Plugin
from topology.agent.model.observations import (
    CountedDevices,
    NvlinkEnd,
    NvmlState,
    PciTree,
    Processors,
    Remote,
    SeenGpu,
    SeenNode,
    Unseen,
    Vitals,
    Xid,
)
from topology.agent.model.podentries import Entry
from topology.agent.probes.podresources import KubeletBusyError, KubeletDownError
from topology.agent.settings import Settings
from topology.core.devices import MIB, Bytes, DeviceId, Gpu, GpuUuid, NodeName, PodUid
from topology.core.links import LinkKind

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
BUS = "0000:{:02x}:00.0".format


def seen_gpu(index: int, number: int) -> SeenGpu:
    """GPU ``number`` of a node whose GPUs are linked in pairs, under the driver's index."""
    peer = NvlinkEnd(0, True, Remote.GPU, BUS(number ^ 1), 2)
    gpu = Gpu(
        index,
        GpuUuid(f"GPU-{number}"),
        "Tesla V100-SXM2-16GB",
        Bytes(16384 * MIB),
        0,
        BUS(number),
    )
    return SeenGpu(gpu, (peer,))


def vital(number: int) -> Vitals:
    """What a GPU shows that is well and idle."""
    return Vitals(GpuUuid(f"GPU-{number}"), active_links=frozenset({0}), energy=1000)


class ScriptedNode:
    """A node with four GPUs. Kubelet, driver and API server say what a test has put down here."""

    def __init__(self) -> None:
        self.now = 0.0
        self.clock_off = 0.0  # by how many seconds the time of day was set
        self.boot = "boot-1"
        self.listed: list[Entry] = []
        self.served: dict[str, list[str]] = {GPU: [f"GPU-{i}" for i in range(4)]}
        self.topology_nodes: dict[DeviceId, tuple[int, ...]] = {}
        self.exclusive = Allocatable()
        self.processors: Processors | Unseen = Processors((), (), ())
        self.pci = PciTree(numa_distances=((10,),))
        # When a part of sysfs was read.
        self.read: dict[str, list[float]] = {"processors": [], "pci": []}
        self.failure: KubeletDownError | None = None
        self.restarts = 0
        self.asked: list[float] = []  # when the kubelet's list was asked for
        self.context = NodeContext(
            {}, Plugin("v0.17.1", {}), kubelet=KubeletConfig("none"), pods_version="1"
        )
        self.xid_events: list[Xid] = []
        self.nvml = NvmlState(problem="it has not answered yet")
        self.agent = self.new_agent()
        shows(0, 1, 2, 3)(self)
        self.pod_changes = False
        self.result: SyncResult = self.sync()

    def new_agent(self) -> NodeAgent:
        """An agent that knows nothing yet."""
        return NodeAgent(
            Settings(NodeName("n")),
            self.boot,
            Probes(
                self,
                self.state,
                self.xids,
                self.read_pci,
                lambda: self.context,
                self.read_processors,
            ),
            Clock(lambda: self.now, self.time_of_day),
        )

    def time_of_day(self) -> str:
        """The clock as text: the test began at midnight."""
        at = MIDNIGHT + timedelta(seconds=self.now + self.clock_off)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    def idle(self) -> dict[str, str]:
        """Since when pods have not used their GPUs (hours and minutes), by UID, as published."""
        return {i.pod_uid: i.since[11:16] for i in self.result.picture.report.idle}

    # What the agent asks.

    def entries(self) -> list[Entry]:
        """The kubelet's list."""
        self.asked.append(self.now)
        if self.failure is not None:
            raise self.failure
        return sorted(self.listed, key=repr)

    def allocatable(self) -> dict[str, frozenset[DeviceId]]:
        """What the kubelet hands out from."""
        return {name: frozenset(map(DeviceId, ids)) for name, ids in self.served.items()}

    def read_pci(self) -> PciTree:
        """The PCI tree in sysfs."""
        self.read["pci"].append(self.now)
        return self.pci

    def read_processors(self) -> Processors | Unseen:
        """The CPUs in sysfs."""
        self.read["processors"].append(self.now)
        return self.processors

    def state(self) -> NvmlState:
        """What NVML has shown."""
        return self.nvml

    def xids(self) -> list[Xid]:
        """The driver's errors since."""
        found, self.xid_events = self.xid_events, []
        return found

    # Time.

    def sync(self) -> SyncResult:
        """One turn, now."""
        news, self.pod_changes, self.woken = self.pod_changes, False, False
        self.result = self.agent.sync(news=news)
        return self.result

    def play_until(self, seconds: float) -> None:
        """Take every turn that is due until then, and stand there."""
        if self.woken:
            self.sync()
        at_once = 0
        while self.result.next_sync <= seconds:
            at_once = at_once + 1 if self.result.next_sync <= self.now else 0
            assert at_once < 3, "the loop spins"
            self.now = max(self.now, self.result.next_sync)
            self.sync()
        self.now = seconds

    # What happens.

    def look(
        self, seen: SeenNode | None, vitals: tuple[Vitals, ...], nameless: tuple[int, ...] = ()
    ) -> None:
        """NVML shows this from now on."""
        if seen is not None:
            indices = [each.gpu.index for each in seen.gpus]
            peers = [(a, b) for a in indices for b in indices if a < b]
            seen = replace(seen, pcie=dict.fromkeys(peers, LinkKind.PIX))
        rounds = self.nvml.rounds + 1
        self.nvml = NvmlState(seen, vitals, rounds, "", asked=True, nameless=nameless)
        self.woken = True

    def know(self, **fields: object) -> None:
        """The API server says something else from now on."""
        self.context = replace(self.context, **fields)  # type: ignore[arg-type]
        self.woken = self.pod_changes = True

    def holders(self) -> dict[str, tuple[int, ...]]:
        """GPU numbers by the UID of the pod that has them, as published; "?" is an unknown pod."""
        found: dict[str, tuple[int, ...]] = {}
        for a in self.result.picture.report.allocations:
            numbers = tuple(int(i.removeprefix("GPU-")) for i in a.device_ids)
            found[a.pod_uid or "?"] = (*found.get(a.pod_uid or "?", ()), *numbers)
        return found


Change = Callable[[ScriptedNode], None]


@dataclass(frozen=True, slots=True)
class Row:
    """At ``at`` seconds this happens, and then this is published.

    What is None is not looked at. ``not_ready`` is part of the reason why the record cannot be
    relied on, empty where it can; ``sick`` are reasons by GPU. ``missing`` are GPUs that do not
    answer, and whether the driver counts them.
    """

    at: float
    does: Change | None = None
    holders: Mapping[str, tuple[int, ...]] | None = None
    not_ready: str | None = None
    sick: Mapping[int, str] | None = None
    missing: Mapping[str, bool] | None = None


Story = tuple[Row, ...]


def play(rows: Sequence[Row]) -> ScriptedNode:
    """Play a table from its first row to its last; every row must come true."""
    node = ScriptedNode()
    for row in rows:
        node.play_until(row.at)
        if row.does is not None:
            row.does(node)
        report = node.result.picture.report
        if row.holders is not None:
            assert node.holders() == row.holders, f"at {row.at} s"
        if row.not_ready == "":
            assert report.not_ready == "", f"at {row.at} s"
        elif row.not_ready is not None:
            assert row.not_ready in report.not_ready, f"at {row.at} s"
        if row.sick is not None:
            reasons = {int(h.uuid.removeprefix("GPU-")): h.reason for h in report.health}
            assert reasons == row.sick, f"at {row.at} s"
        if row.missing is not None:
            assert {m.name: m.counted for m in report.missing} == row.missing, f"at {row.at} s"
    return node


# Changes, as a table says them.


def bound(uid: str, name: str, count: int = 1, **fields: Any) -> Change:
    """The API server has this pod, or has it again."""

    def change(node: ScriptedNode) -> None:
        node.know(pods={**node.context.pods, PodUid(uid): pod(uid, name, count, **fields)})

    return change


def deleted(uid: str) -> Change:
    """The API server has this pod no more."""

    def change(node: ScriptedNode) -> None:
        left = {known: p for known, p in node.context.pods.items() if known != uid}
        node.know(pods=left, deletions=node.context.deletions + 1)

    return change


def listed(*entries: Entry) -> Change:
    """The kubelet lists these pods from now on, and no others."""

    def change(node: ScriptedNode) -> None:
        node.listed = list(entries)

    return change


def holds(name: str, *numbers: int) -> Entry:
    """An entry of the kubelet's list."""
    return entry(name, *(f"GPU-{n}" for n in numbers))


def restarted(*entries: Entry) -> Change:
    """The kubelet has restarted and lists these pods."""

    def change(node: ScriptedNode) -> None:
        node.restarts += 1
        node.listed = list(entries)

    return change


def silent(cause: str = "kubelet.sock: No such file") -> Change:
    """The kubelet does not answer."""

    def change(node: ScriptedNode) -> None:
        node.failure = KubeletDownError(cause)

    return change


def busy(node: ScriptedNode) -> None:
    """The kubelet asks to be left alone for a moment."""
    node.failure = KubeletBusyError("List: RESOURCE_EXHAUSTED")


def answers(node: ScriptedNode) -> None:
    """The kubelet answers again."""
    node.failure = None


def serves(*ids: str) -> Change:
    """The kubelet hands out from these devices."""

    def change(node: ScriptedNode) -> None:
        node.served = {GPU: list(ids)}

    return change


def xid(number: int, gpu: int) -> Change:
    """The driver reports an error of a GPU."""

    def change(node: ScriptedNode) -> None:
        node.xid_events.append(Xid(GpuUuid(f"GPU-{gpu}"), number))
        node.woken = True

    return change


def shows(*numbers: int, nameless: tuple[int, ...] = (), **of: Mapping[str, object]) -> Change:
    """The driver shows these GPUs. ``gpu2={...}`` says what is special about GPU 2.

    Those with the numbers ``nameless`` it counts, and they never told who they are.
    """

    def change(node: ScriptedNode) -> None:
        fields = {int(name.removeprefix("gpu")): found for name, found in of.items()}
        seen = SeenNode(tuple(seen_gpu(i, n) for i, n in enumerate(numbers)))
        node.look(
            seen,
            tuple(replace(vital(n), **fields.get(n, {})) for n in numbers),  # type: ignore[arg-type]
            nameless,
        )

    return change


def agent_restarted(boot: str = "boot-1") -> Change:
    """The agent ends and another one starts, which reads what this one has published."""

    def change(node: ScriptedNode) -> None:
        former = node.result.picture
        node.boot = boot
        node.agent = node.new_agent()
        assert former.topology is not None
        node.agent.remember(former.topology, former.report)
        node.woken = True

    return change


def agent_forgotten(node: ScriptedNode) -> None:
    """Another agent starts, and there is no record of one before."""
    node.agent = node.new_agent()
    node.woken = True


def plugin_started(at: str) -> Change:
    """The device plugin runs since then."""
    return lambda node: node.know(plugin=Plugin("v0.17.1", {}, at))


def counts(devices: int, in_order: int, at: str) -> Change:
    """The kubelet reported so many GPUs to the API server at that time."""
    counted = CountedDevices(at, {GPU: devices}, {GPU: in_order})
    return lambda node: node.know(counted=counted)
