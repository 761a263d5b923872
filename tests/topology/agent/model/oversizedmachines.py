"""Machines each of which exceeds a limit of a record's schema, and what is then to be read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.kubelet import GPU
from topology import codec
from topology.agent.loop import Clock, NodeAgent, Probes
from topology.agent.model.exclusive import Allocatable
from topology.agent.model.nodecontext import KubeletConfig, NodeContext, plugin_of
from topology.agent.model.observations import (
    NvmlState,
    PciNic,
    PciTree,
    Processors,
    SeenGpu,
    SeenNode,
    Unseen,
    Vitals,
    Xid,
)
from topology.agent.model.podentries import Entry, Held, NodePod
from topology.agent.model.record import Picture
from topology.agent.settings import Settings
from topology.core.devices import (
    MIB,
    Bytes,
    DeviceId,
    Gpu,
    GpuUuid,
    MigInstance,
    NodeName,
    PodUid,
)
from topology.core.graph import NodeTopology
from topology.core.numa import CpuSet, MemoryBlock, cpu_set

NOON = "2026-01-01T12:00:00Z"


def gpus(count: int, **more: Any) -> tuple[SeenGpu, ...]:
    return tuple(
        SeenGpu(
            Gpu(
                i,
                GpuUuid(f"GPU-{i}"),
                **{
                    "product": "Tesla V100",
                    "memory": Bytes(16384 * MIB),
                    "pci_bus_id": f"0000:{i:02x}:00.0",
                    **more,
                },
            )
        )
        for i in range(count)
    )


def named(*devices: str) -> tuple[DeviceId, ...]:
    return tuple(map(DeviceId, devices))


def ids(count: int, of: str = "GPU-0") -> tuple[DeviceId, ...]:
    return tuple(DeviceId(f"{of}::{n}") for n in range(count))


PROCESSORS = Processors((cpu_set("0-3"),), (0,), (cpu_set("0-1"), cpu_set("2-3")))
STATIC = KubeletConfig(
    "none", cpu_manager_policy="static", memory_manager_policy="Static", socket_aligned=False
)
GIVEN = Allocatable(cpu_set("1-3"), {(0, "memory"): 2**30})


@dataclass
class Machine:
    """A node as driver, kubelet and sysfs show it, as values."""

    seen: SeenNode = field(default_factory=lambda: SeenNode(gpus(2)))
    vitals: tuple[Vitals, ...] = ()
    xids_: tuple[Xid, ...] = ()
    entries_: Sequence[Entry] = ()
    served: Mapping[str, Sequence[DeviceId]] = field(
        default_factory=lambda: {GPU: named("GPU-0", "GPU-1")}
    )
    pci: PciTree = field(default_factory=PciTree)
    image: str = "example/k8s-device-plugin:v0.17.1"
    restarts: int = 0
    topology_nodes: Mapping[DeviceId, tuple[int, ...]] = field(default_factory=dict)
    kubelet: KubeletConfig = KubeletConfig("none")  # noqa: RUF009 (frozen)
    processors: Processors | Unseen = PROCESSORS
    exclusive: Allocatable = field(default_factory=Allocatable)
    pods: Sequence[NodePod] = ()

    def state(self) -> NvmlState:
        return NvmlState(self.seen, self.vitals, 1, "", True)

    def xids(self) -> list[Xid]:
        return list(self.xids_)

    def entries(self) -> list[Entry]:
        return list(self.entries_)

    def allocatable(self) -> dict[str, frozenset[DeviceId]]:
        return {name: frozenset(found) for name, found in self.served.items()}

    def picture(self) -> Picture:
        """What an agent on this node sees."""
        context = NodeContext(
            {pod.uid: pod for pod in self.pods},
            plugin_of(self.image, (), {}),
            kubelet=self.kubelet,
            has_api_server=False,
        )
        agent = NodeAgent(
            Settings(NodeName("n")),
            "boot",
            Probes(
                self,
                self.state,
                self.xids,
                lambda: self.pci,
                lambda: context,
                lambda: self.processors,
            ),
            Clock(lambda: 0.0, lambda: NOON),
        )
        return agent.sync().picture

    def record(self) -> dict[str, Any]:
        """The object that the agent would write of a node of which none is there."""
        picture = self.picture()
        return codec.encode(picture.topology or NodeTopology(NodeName("n"), ()), picture.report)


def holding(*held: tuple[str, Sequence[str]]) -> list[Entry]:
    """A pod for each, with one container."""
    return [Entry("default", name, (Held("main", GPU, named(*devices)),)) for name, devices in held]


def owning(pods: int, blocks: int) -> list[Entry]:
    """So many pods, each with CPUs and so many blocks of memory for its own."""
    memory = (MemoryBlock("hugepages-1Gi", 2**40, tuple(range(64))),) * blocks
    return [Entry("default", f"p{i}", (), cpu_set("1-3"), memory) for i in range(pods)]


def owning_block(
    kind: str = "memory", amount: int = 1, nodes: tuple[int, ...] = (0,)
) -> list[Entry]:
    """A pod with one block of memory for its own."""
    return [Entry("default", "p", (), cpu_set("1"), (MemoryBlock(kind, amount, nodes),))]


NICS = {f"mlx5_{i}": PciNic(("pci0000:00", f"port{i % 4}", f"vf{i}"), 0) for i in range(100)}
PLACES = {"0000:00:00.0": ("pci0000:00", "port3", "gpu"), "0000:01:00.0": ("pci0000:01", "gpu")}

Expectation = Callable[[dict[str, Any]], bool]


def condition(record: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [c for c in record["status"]["conditions"] if c["type"] == kind]
    return found  # type: ignore[no-any-return]


def not_ready(reason: str, *words: str) -> Expectation:
    def holds(record: dict[str, Any]) -> bool:
        ready = condition(record, "Ready")
        return (
            ready["status"] == "False"
            and ready["reason"] == reason
            and all(word in ready["message"] for word in words)
        )

    return holds


def incomplete(*words: str) -> Expectation:
    def holds(record: dict[str, Any]) -> bool:
        complete = condition(record, "Complete")
        said_so = all(w in complete["message"] for w in words)
        return bool(complete["status"] == "False" and said_so)

    return holds


def too_large(words: str) -> Expectation:
    """Ready says by how much, and only conditions are published: a part could be taken for
    the whole."""
    is_said = not_ready(
        "TooLarge", "the record is too large: it would have ", f"{words} are allowed"
    )

    def holds(record: dict[str, Any]) -> bool:
        answer = [record["spec"].get("devices")]
        answer += [record["status"].get(key) for key in ("allocatable", "allocations", "exclusive")]
        return is_said(record) and not any(answer) and "allocatable" not in record["status"]

    return holds


def nothing_lost(record: dict[str, Any]) -> bool:
    return bool(condition(record, "Ready")["status"] == "True")


EXCEEDING: dict[str, tuple[tuple[str, ...], Machine, Expectation]] = {
    "twenty kinds of MIG devices": (
        (".spec.resources",),
        Machine(served={f"nvidia.com/mig-{i}g": (DeviceId(f"MIG-{i}"),) for i in range(20)}),
        too_large("20 resources, but at most 16"),
    ),
    "two thousand shares of a GPU": (
        (".spec.resources[].replicas",),
        Machine(served={GPU: ids(2000)}),
        too_large("2,000 shares of one GPU, but at most 1,024"),
    ),
    "more shares than a list holds": (
        (".status.allocatable",),
        Machine(served={GPU: [i for gpu in range(6) for i in ids(1000, f"GPU-{gpu}")]},
                seen=SeenNode(gpus(6))),
        too_large("6,000 device ids to hand out, but at most 4,096"),
    ),
    "an id that is too long": (
        (".status.allocatable[]",),
        Machine(served={GPU: (DeviceId("GPU-0"), DeviceId("x" * 300))}),
        not_ready("UnknownDevices", "1 device id is"),
    ),
    "an id of other letters": (
        (".status.allocatable[]", ".status.allocations[].deviceIds[]"),
        Machine(
            served={GPU: (DeviceId("GPU-0"), DeviceId("größe 1"))},
            entries_=holding(("a", ["größe 1"]), ("b", ["GPU-0"])),
        ),
        not_ready("UnknownDevices", "1 device id is", "größe 1"),
    ),
    "more holders than a list holds": (
        (".status.allocations",),
        Machine(entries_=holding(*((f"p{i}", [DeviceId(f"GPU-0::{i}")]) for i in range(5000)))),
        too_large("5,000 allocations, but at most 4,096"),
    ),
    "a container with more shares than a list holds": (
        (".status.allocations[].deviceIds",),
        Machine(entries_=holding(("a", ids(5000)), ("b", ids(3, "GPU-1")))),
        too_large("5,000 device ids of one container, but at most 4,096"),
    ),
    "long names and many of them": (
        (),
        Machine(entries_=holding(*((f"{i:x>250}", [f"GPU-0::{i}"]) for i in range(2500)))),
        too_large("bytes, but at most 480,000"),
    ),
    "more refused pods than a list holds": (
        (".status.history", ".status.history[].reason"),
        Machine(
            pods=[
                NodePod(PodUid(f"u{i}"), "ns", "p", {("main", GPU): 1}, started=NOON,
                        refused="OutOf" + "x" * 300)
                for i in range(40)
            ],
        ),
        nothing_lost,
    ),
    "two pods of one name that nobody knows": (
        (".status.allocations[].podUID",),
        Machine(entries_=holding(("a", ["GPU-0"]), ("a", ["GPU-1"]))),
        nothing_lost,
    ),
    "a claim of a DRA driver": (
        (".status.allocations[].resource",),
        Machine(entries_=[Entry("default", "a", (Held("m", "gpu.nvidia.com", named("n/gpu-0")),))]),
        nothing_lost,
    ),
    "seventy GPUs": (
        (".spec.devices", ".spec.links", ".status.summary.gpus", ".status.summary.free"),
        Machine(SeenNode(gpus(70))),
        not_ready("HardwareContradictory", "70 GPUs, but at most 64"),
    ),
    "sixty-four GPUs": (
        (),
        Machine(SeenNode(gpus(64)), served={GPU: [DeviceId(f"GPU-{i}") for i in range(64)]}),
        nothing_lost,
    ),
    "a GPU whose PCI address nobody tells": (
        (".spec.devices[].pciBusId",),
        Machine(SeenNode(gpus(2, pci_bus_id=None))),
        nothing_lost,
    ),
    "a product's name without an end": (
        (".spec.devices[].product",),
        Machine(SeenNode(gpus(2, product="V" * 400))),
        nothing_lost,
    ),
    "twenty MIG devices of a GPU": (
        (".spec.devices[].migInstances",),
        Machine(SeenNode(gpus(2, mig_mode="enabled", mig_instances=tuple(
            MigInstance(f"MIG-{i}", "1g.5gb", Bytes(1)) for i in range(20))))),
        too_large("20 MIG devices of one GPU, but at most 16"),
    ),
    "a hundred NICs": (
        (".spec.nics", ".spec.nics[].distances"),
        Machine(pci=PciTree(PLACES, nics=NICS)),
        incomplete("RDMA NICs: there are 100, but a record can have 64"),
    ),
    "a plugin's version without an end": (
        (".spec.allocator.pluginVersion",),
        Machine(image="example/k8s-device-plugin:v0.17" + ".1" * 60),
        nothing_lost,
    ),
    "every fault that there is": (
        (".status.health[].reason",),
        Machine(xids_=tuple(Xid(GpuUuid("GPU-0"), 79 + n) for n in range(0, 400, 4))),
        lambda r: "Xid79, Xid83, " in r["status"]["health"][0]["reason"],
    ),
    "more sick GPUs than fit into a node": (
        (".status.health",),
        Machine(xids_=tuple(Xid(GpuUuid(f"GPU-{n}"), 79) for n in range(90))),
        lambda r: len(r["status"]["health"]) == 64,
    ),
    "a machine with five thousand CPUs": (
        (".spec.numaNodes[].cpus",),
        Machine(kubelet=STATIC, exclusive=GIVEN, processors=Processors(
            (CpuSet((1 << 5000) - 1),), (0,), (CpuSet((1 << 5000) - 1),))),
        incomplete("CPUs and memory by NUMA node: there is a CPU 4999, but a record can only have"),
    ),
    "more pods with CPUs of their own than a list holds": (
        (".status.exclusive",),
        Machine(kubelet=STATIC, exclusive=GIVEN, entries_=owning(5000, 0)),
        incomplete("exclusive CPUs and memory: 5000 pods have exclusive CPUs"),
    ),
    "a pod with a thousand blocks of memory": (
        (".status.exclusive[].memory",),
        Machine(kubelet=STATIC, exclusive=GIVEN, entries_=owning(1, 1025)),
        incomplete("exclusive CPUs and memory: 1 pods have exclusive CPUs", "1024 blocks"),
    ),
    "memory of a NUMA node that the kubelet cannot name": (
        (".status.exclusive[].memory[].numaNodes[]",),
        Machine(kubelet=STATIC, exclusive=GIVEN, entries_=owning_block(nodes=(0, 64))),
        incomplete("exclusive CPUs and memory: the kubelet reports 1 bytes", "NUMA nodes 0, 64"),
    ),
    "memory below the first NUMA node": (
        (".status.exclusive[].memory[].numaNodes[]",),
        Machine(kubelet=STATIC, exclusive=GIVEN, entries_=owning_block(nodes=(-1,))),
        incomplete("exclusive CPUs and memory: the kubelet reports 1 bytes", "NUMA nodes -1"),
    ),
    "more memory than a record can say": (
        (".status.exclusive[].memory[].bytes", ".spec.numaNodes[].memory[].bytes"),
        Machine(kubelet=STATIC, entries_=owning_block(amount=2**63), exclusive=Allocatable(
            cpu_set("1-3"), {(0, "memory"): 2**63})),
        incomplete("exclusive CPUs and memory: ", f"the kubelet reports {2**63} bytes of 'memory'",
                   "CPUs and memory by NUMA node: "),
    ),
    "memory of no type": (
        (".status.exclusive[].memory[].type", ".spec.numaNodes[].memory[].type"),
        Machine(kubelet=STATIC, entries_=owning_block(kind=""), exclusive=Allocatable(
            cpu_set("1-3"), {(0, ""): 1})),
        incomplete("exclusive CPUs and memory: ", "the kubelet reports 1 bytes of ''",
                   "CPUs and memory by NUMA node: "),
    ),
    "seventeen types of memory": (
        (".spec.numaNodes[].memory",),
        Machine(kubelet=STATIC, exclusive=Allocatable(
            cpu_set("1-3"), {(0, f"hugepages-{i}Mi"): 1 for i in range(17)})),
        incomplete("CPUs and memory by NUMA node: there are 17 types of memory"),
    ),
    "a plugin that names NUMA nodes which there are none of": (
        (".spec.devices[].topologyNodes[]",),
        Machine(topology_nodes={DeviceId("GPU-0"): (-1,), DeviceId("GPU-1"): (0, 64)}),
        incomplete(
            "to the kubelet of GPU-0: the plugin names -1, but allowed are 0 to 63",
            "of GPU-1: the plugin names 64",
        ),
    ),
    "many pods with much memory": (
        (),
        Machine(kubelet=STATIC, exclusive=GIVEN, entries_=owning(1000, 8)),
        incomplete("exclusive CPUs and memory: 1000 pods have exclusive CPUs or memory", "100 kB"),
    ),
    "more GPUs that do not answer than fit into a node": (
        (".status.missing",),
        Machine(vitals=tuple(Vitals(GpuUuid(f"GPU-{n}"), lost=True) for n in range(90))),
        lambda r: len(r["status"]["missing"]) == 64,
    ),
    "a thousand facts that nobody tells": (
        (".status.conditions[].message",),
        Machine(SeenNode(gpus(2), unseen=tuple(Unseen(f"fact {i}", "x" * 99) for i in range(999)))),
        incomplete("fact 0"),
    ),
}  # fmt: skip

TOO_LARGE = EXCEEDING["two thousand shares of a GPU"][1].picture()
