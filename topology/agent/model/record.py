"""The record as the agent would write it now, and its conditions.

Values that cannot be relied on are not published as if they could. The record then says that it is
not Ready, and the extender guarantees nothing on that node.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from topology.agent.model import exclusive, recordlimits
from topology.agent.model.devicepolicy import allocator_of, lacks_shares, resources_of
from topology.agent.model.exclusive import Allocatable
from topology.agent.model.hardware import Hardware
from topology.agent.model.holders import Holders
from topology.agent.model.nodecontext import NodeContext
from topology.agent.model.observations import Processors, Unseen
from topology.agent.model.podentries import allocations
from topology.agent.model.recordlimits import LONGEST_MESSAGE, Problem, plain
from topology.agent.model.utilization import Key, idle_allocations
from topology.core.devices import DeviceId, GpuResource, GpuUuid, PodUid, base_uuid
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.mig import MIG, served_devices
from topology.core.numa import Holding
from topology.core.report import (
    FABRIC_NOT_READY,
    FABRIC_READY,
    READY,
    UNACCOUNTED_USE,
    Condition,
    Health,
    MissingGpu,
    RefusedPod,
    Report,
    SharesAnswer,
)

COMPLETE = "Complete"


@dataclass(frozen=True, slots=True)
class Picture:
    """The record as it should be now."""

    # None if the hardware could not be read, or the record is too large
    topology: NodeTopology | None
    report: Report
    unseen: tuple[Unseen, ...] = ()
    due: frozenset[PodUid] = frozenset()  # pods whose change the kubelet has yet to show
    shown: frozenset[PodUid] = frozenset()  # pods that the report shows
    # How many pods had been deleted when the kubelet was asked. The extender holds a pod's GPUs
    # until a report says that its agent knew of the deletion. So each deletion causes a write.
    deletions: int = 0
    unknown: int = 0  # how many device ids name no known GPU
    unfit: Problem | None = None  # why part of what is known cannot be published
    # Whether the record depends on the Node's count of devices. It does if a GPU does not answer,
    # or if the kubelet holds back shares of a GPU.
    rests_on_count: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletState:
    """The state of the kubelet's answers."""

    cause: str = ""  # why it does not answer; empty if it does
    silent: bool = False  # whether the last request was not answered
    gone: bool = False  # whether it does not answer at all
    too_long: bool = False  # whether it has been silent for so long that the record has to say so
    accepted: bool = True  # whether a list of its pods has been accepted
    pods_missing: bool = False  # whether it does not show pods that are alive
    devices_missing: bool = False  # whether it has just started and has no devices yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The inputs of a record at one time."""

    boot_id: str
    hardware: Hardware
    context: NodeContext
    kubelet: KubeletState = KubeletState()
    nvml_problem: str = ""  # empty if NVML answers
    # Device ids by resource; None before the kubelet's first answer.
    allocatable: Mapping[str, frozenset[DeviceId]] | None = None
    holders: Holders = field(default_factory=Holders)
    health: tuple[Health, ...] = ()
    # For each GPU that can be in an NVLink fabric, whether it can rely on it.
    fabric: Mapping[GpuUuid, bool] = field(default_factory=dict)
    missing: tuple[MissingGpu, ...] = ()
    unaccounted: Collection[GpuUuid] = ()  # GPUs that are used although no pod holds them
    idle: Mapping[Key, str] = field(default_factory=dict)  # since when devices are idle
    history: tuple[RefusedPod, ...] = ()
    due: frozenset[PodUid] = frozenset()
    # The NUMA nodes that the plugin reports to the kubelet, by GPU, as seen so far.
    topology_nodes: Mapping[GpuUuid, tuple[int, ...]] = field(default_factory=dict)
    # The machine's processors, or why they are not known; None before they were read.
    processors: Processors | Unseen | None = None
    exclusive: Allocatable | None = None  # None before the kubelet's first answer
    policy: str | None = None  # the plugin's policy, if an operator has set it
    refuses_several: bool | None = None  # whether the plugin refuses a container several shares
    # what it last did with a pod that requested several shares
    several_shares: SharesAnswer | None = None


class ConditionTracker:
    """The time since when each condition has had its status."""

    def __init__(self, former: Collection[Condition] = ()) -> None:
        self._last = {condition.type: condition for condition in former}

    def say(self, kind: str, status: bool, reason: str, message: str, now: str) -> Condition:
        """Return the condition, with the time since when it has had this status."""
        last = self._last.get(kind)
        since = last.since if last is not None and last.status == status else now
        condition = Condition(kind, status, reason, plain(message[:LONGEST_MESSAGE]), since)
        self._last[kind] = condition
        return condition


def compose(observation: Observation, conditions: ConditionTracker, now: str) -> Picture:
    """Return the record of these inputs; ``now`` is the time of day as RFC 3339.

    The report has no sequence yet, because the writer numbers it.
    """
    hints, strange = recordlimits.hinted(observation.topology_nodes)
    observation = replace(observation, topology_nodes=hints)
    hardware, holders = observation.hardware, observation.holders
    allocatable, counted = observation.allocatable or {}, observation.context.counted
    resources = resources_of(
        allocatable,
        observation.context.labels,
        observation.refuses_several,
        counted.devices if counted is not None else None,
    )
    allocator, untold = _allocator(observation, resources)
    topology = None
    if hardware.topology is not None and hardware.looked:
        topology = _with_choosers(hardware.topology, observation, resources, allocator)
    held = allocations(holders.by_uid, holders.unidentified)
    gpus = None if topology is None else [gpu.uuid for gpu in topology.gpus]
    unknown = recordlimits.unknown_devices(allocatable, held, gpus)
    own, hidden = recordlimits.exclusive(_exclusive(observation))
    shown = recordlimits.publishable_allocations(held)
    context = observation.context.unseen
    silent = [Unseen(gpu.name, "it does not answer the driver") for gpu in observation.missing]
    unseen = tuple(sorted({*silent, *hardware.unseen, *untold, *context, *strange, *hidden}))
    # Readers would take part of the devices for all of them. So either all are published, or none.
    offered = None
    if observation.allocatable is not None and not unknown:
        offered = frozenset(device for ids in allocatable.values() for device in ids)
    report = Report(
        observation.boot_id,
        0,
        offered,
        shown,
        observation.health,
        (
            _unaccounted(observation, resources, conditions, now, known=not unknown),
            conditions.say(
                COMPLETE,
                not unseen,
                "SomeUnseen" if unseen else "AllSeen",
                "; ".join(map(str, unseen)),
                now,
            ),
            *_fabric_ready(observation, conditions, now),
        ),
        holdings=own,
        missing=observation.missing,
        several_shares=observation.several_shares,
        idle=idle_allocations(shown, observation.idle),
        history=observation.history,
        observed_at=holders.observed_at,
        pods_version=holders.pods_version,
    )
    too_large = recordlimits.too_large(topology, report)
    unfit = too_large or (
        recordlimits.of_unknown(unknown) if unknown else _misnamed(topology, allocatable)
    )
    if too_large is not None:
        # The hardware stays as it was written last, and the holders of devices are left out.
        topology = None
        report = replace(report, allocatable=None, allocations=(), holdings=None, idle=())
    ready = _ready(observation, too_large, unfit, conditions, now)
    return Picture(
        topology,
        replace(report, conditions=(ready, *report.conditions)),
        (*_unanswered(observation), *unseen),
        observation.due,
        frozenset(holders.by_uid),
        holders.deletions,
        len(unknown),
        unfit,
        any(not gpu.counted for gpu in observation.missing)
        or any(lacks_shares(allocatable.get(served.name, ()), served) for served in resources),
    )


def _with_choosers(
    hardware: NodeTopology,
    observation: Observation,
    resources: tuple[GpuResource, ...],
    allocator: AllocatorConfig,
) -> NodeTopology:
    """Return the hardware, completed by how the kubelet and the plugin hand it out."""
    # The NUMA nodes that the plugin reports to the kubelet. Those of a MIG instance are its GPU's.
    named = dict(observation.topology_nodes)
    for gpu in hardware.gpus:
        for part in gpu.mig_instances:
            if part.uuid in observation.topology_nodes:
                named[gpu.uuid] = observation.topology_nodes[GpuUuid(part.uuid)]
    allocator = replace(
        allocator,
        numa_distances=hardware.allocator.numa_distances,
        sees_topology=allocator.topology_manager_policy == "none"
        # A GPU in MIG mode without instances serves nothing.
        or all(
            gpu.uuid in named
            for gpu in hardware.gpus
            if gpu.mig_mode != "enabled" or gpu.mig_instances
        ),
    )
    gpus = tuple(
        replace(g, topology_nodes=named.get(g.uuid, g.topology_nodes)) for g in hardware.gpus
    )
    return replace(hardware, gpus=gpus, resources=resources, allocator=allocator)


def _misnamed(
    topology: NodeTopology | None, allocatable: Mapping[str, Collection[DeviceId]]
) -> Problem | None:
    """Return the problem of a MIG instance whose resource does not fit its profile, if any.

    The extender finds instances by the names of resource and profile. It would count too few
    devices.
    """
    if topology is None:
        return None
    profiles = {part.uuid: part.profile for gpu in topology.gpus for part in gpu.mig_instances}
    for resource in topology.resources:
        places = served_devices(topology, resource).position_of
        for device in sorted(allocatable.get(resource.name, ())):
            profile = profiles.get(base_uuid(device))
            if profile is not None and resource.strategy == MIG and base_uuid(device) not in places:
                return Problem(
                    "UnexpectedResource",
                    f"{device[:64]!r} is served as {resource.name}, and its profile is "
                    f"{profile[:64]!r}, so the devices that the node hands out are unknown",
                )
    return None


def _allocator(
    observation: Observation, resources: tuple[GpuResource, ...]
) -> tuple[AllocatorConfig, tuple[Unseen, ...]]:
    """Return how the kubelet and the plugin choose devices, and the parts that are not known."""
    context, doubt = observation.context, observation.hardware.doubt
    found, untold = allocator_of(
        resources, context.plugin, context.kubelet, observation.policy, doubt
    )
    numa, hidden = exclusive.numa_config(
        context.kubelet, observation.processors, observation.exclusive
    )
    return replace(found, numa=numa), (*untold, *hidden)


def _exclusive(observation: Observation) -> tuple[Holding, ...] | None:
    """Return the pods' exclusive CPUs and memory.

    The result is None if no manager is static, or if they are not known.
    """
    told = exclusive.published(observation.context.kubelet, observation.exclusive)
    return observation.holders.exclusive if told and observation.kubelet.accepted else None


def _unanswered(observation: Observation) -> list[Unseen]:
    """Return the sources that do not answer at all: shown on stderr, but not in ``Complete``."""
    found = []
    if observation.nvml_problem:
        found.append(Unseen("GPUs and links", f"NVML: {observation.nvml_problem}"))
    if observation.kubelet.cause:
        found.append(Unseen("pods' devices", observation.kubelet.cause))
    return found


def _ready(
    observation: Observation,
    too_large: Problem | None,
    unfit: Problem | None,
    conditions: ConditionTracker,
    now: str,
) -> Condition:
    """Return the condition Ready, with the first reason against it if there is one.

    Ready means that the record can be relied on.
    """
    problem, kubelet = None, observation.kubelet
    # first, since readers of the record have to know that it lacks holders
    if too_large is not None:
        problem = too_large
    elif observation.nvml_problem:
        problem = Problem("NvmlUnavailable", f"NVML: {observation.nvml_problem}")
    elif observation.hardware.contradiction:
        problem = Problem("HardwareContradictory", observation.hardware.contradiction)
    # A kubelet that is gone may come back with other devices to hand out, and admit pods at once.
    elif kubelet.silent and (kubelet.gone or kubelet.too_long or not kubelet.accepted):
        problem = Problem("KubeletUnavailable", kubelet.cause)
    elif not kubelet.accepted:
        problem = Problem("Starting", "the node's pods are not known yet")
    elif unfit is not None:
        problem = unfit
    elif kubelet.devices_missing:
        problem = Problem("DevicesMissing", "the kubelet has started and offers no GPUs yet")
    elif kubelet.pods_missing:
        problem = Problem("PodsMissing", "the kubelet does not show pods that are alive")
    if problem is None:
        return conditions.say(READY, True, "Watching", "", now)
    return conditions.say(READY, False, problem.reason, problem.message, now)


def _unaccounted(
    observation: Observation,
    resources: tuple[GpuResource, ...],
    conditions: ConditionTracker,
    now: str,
    *,
    known: bool,
) -> Condition:
    """Return the condition that names the GPUs that are used without a pod.

    ``known`` says that the holder of each GPU is known. Process ids are left out, because they
    change at each reading and each change would cause a write. The MPS server, which computes on
    every GPU, is left out, too.
    """
    topology = observation.hardware.topology
    if topology is None:
        return conditions.say(UNACCOUNTED_USE, False, "NotLooked", "no GPU has been seen", now)
    found = []
    if known and not any(resource.strategy == "mps" for resource in resources):
        found = [f"GPU {gpu.index}" for gpu in topology.gpus if gpu.uuid in observation.unaccounted]
    reason = "HeldByNoPod" if found else "AllAccountedFor"
    return conditions.say(UNACCOUNTED_USE, bool(found), reason, ", ".join(found), now)


def _fabric_ready(
    observation: Observation, conditions: ConditionTracker, now: str
) -> Iterator[Condition]:
    """Yield the condition that every GPU can use its NVLinks through a switch.

    A node without a fabric has no such condition.
    """
    topology = observation.hardware.topology
    if topology is not None and observation.fabric:
        gpus = [gpu for gpu in topology.gpus if not observation.fabric.get(gpu.uuid, True)]
        words = ", ".join(f"GPU {gpu.index}" for gpu in gpus)
        reason = FABRIC_NOT_READY if gpus else "AllUsable"
        yield conditions.say(FABRIC_READY, not gpus, reason, words, now)
