"""The reasons why a node is rejected, the limits of its hardware, and the certain refusals.

A refusal is *certain* if the kubelet refuses the pod whatever else happens on the node. Outcomes
are a superset of the sets that a node may hand out. So if there are no outcomes, and all refusals
met on the way are known (the hazards), the kubelet refuses the pod, whatever its constraints are. A
pod that is bound there is lost: it becomes Failed. Its controller creates the next one, which is
bound there too.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import comb

from topology.core.admission import AFFINITY, SEVERAL, DeviceManager, provider_answers
from topology.core.availability import Availability
from topology.core.budget import SPENT, most_sets
from topology.core.devices import positions
from topology.core.devicesets import pack
from topology.core.memo import memoized
from topology.core.numaresources import emptied
from topology.core.patterns import subset_masks
from topology.core.placement.constraints import (
    CompiledConstraints,
    compiled,
    of_models,
    passing_choices,
)
from topology.core.placement.podoutcomes import PodOutcomes, pod_outcomes
from topology.core.requests import Constraints, Exclusive, GpuRequest, first_few, memory_text
from topology.core.shape import Shape


class Reason(Enum):
    """The reason of a :class:`Rejection`, whose message gives the details.

    The values are stable: programs read them, and Prometheus may use them as a label. A new one
    needs its text and its meaning (``explain/wording``), and its messages
    (``manifests/reference/reasons``). Add it to those of these sets that apply: ``LASTING``
    (``explain/waitingreasons``), ``BY_AN_END`` (``explain/remedies``) and ``NEAR``
    (``explain/nodeanswers``).
    """

    NOT_SERVED = "not-served"  # the node does not serve the resource
    TOO_FEW = "too-few-gpus"  # the node has fewer devices than requested, free or not
    SPLIT_BY_MIG = "split-by-mig"  # the node's GPUs are split by MIG
    MODEL = "gpu-model"
    MEMORY = "gpu-memory"
    NIC = "nic"
    LINKS = "links"  # no set of its GPUs is linked as requested, free or not
    # No set of its GPUs meets all constraints, free or not, and no constraint is about links.
    HARDWARE = "hardware"
    SHARES = "shares"  # its GPUs do not have the shares that the pod needs
    BUSY = "busy"  # fewer devices are free than requested
    SCATTERED = "scattered"  # enough devices are free, but no set of them meets the constraints
    # A set that meets the constraints is free, but the node may hand out another one.
    NOT_GUARANTEED = "not-guaranteed"
    SICK = "sick"  # the node hands out a sick GPU, or may do so
    MEMORY_IN_USE = "memory-in-use"  # too little memory of a shared GPU is left
    # The report has to show another pod first, which is bound to the node.
    IN_PROGRESS = "placement-in-progress"
    RESERVED = "reserved"  # the devices are reserved for another pod
    KUBELET = "kubelet"  # the node's kubelet or device plugin refuses the pod, or may refuse it
    REFUSING = "refusing-pods"  # its kubelet has refused such pods, and admitted none since
    GROUP = "group"  # the pod's group or gang belongs elsewhere, or has no capacity
    NO_REPORT = "no-report"
    STALE = "report-stale"
    MAINTENANCE = "maintenance"  # the GPU operator changes the node's driver or MIG layout
    NOT_READY = "report-not-ready"
    UNUSABLE = "record-unusable"
    NO_ALLOCATOR = "no-allocator"  # nothing allocates the node's GPUs to the pod
    CLAIMS = "claims"  # the pod's own ResourceClaims get no devices here
    UNDECIDED = "undecided"  # the node could not be evaluated
    MALFORMED = "malformed"  # the pod's request cannot be parsed
    OUT_OF_DATE = "out-of-date"  # the extender's view of the cluster is out of date
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a node is rejected."""

    # The text for users. It depends only on the request and on the node, never on the time.
    message: str
    resolvable: bool  # whether evicting pods could help
    # Each text has one reason, so the reason is not compared.
    reason: Reason = field(default=Reason.OTHER, compare=False)


NOT_SERVED = Rejection("node does not serve the requested GPU resource", False, Reason.NOT_SERVED)
TOO_FEW = Rejection("node has fewer GPUs than requested", False, Reason.TOO_FEW)
BUSY = Rejection("not enough free GPUs", True, Reason.BUSY)
TOO_FEW_WHOLE = Rejection(
    "too few whole GPUs: the others are split by MIG", False, Reason.SPLIT_BY_MIG
)
SPLIT_BY_MIG = Rejection(
    "GPUs are split by MIG, and the request needs whole GPUs", False, Reason.SPLIT_BY_MIG
)
ALL_SPLIT_BY_MIG = Rejection("all GPUs of the node are split by MIG", False, Reason.SPLIT_BY_MIG)
IN_PROGRESS = Rejection(
    "another GPU placement on the node is in progress", True, Reason.IN_PROGRESS
)
NO_REPORT = Rejection("no topology report", False, Reason.NO_REPORT)
STALE = Rejection("topology report is stale", False, Reason.STALE)
MAINTENANCE = Rejection("node is under maintenance", False, Reason.MAINTENANCE)
NOT_READY = Rejection("topology report is not Ready", False, Reason.NOT_READY)
SICK = Rejection("not guaranteed: the node may hand out a sick GPU", True, Reason.SICK)
ALL_SICK = Rejection("the node would hand out a sick GPU", True, Reason.SICK)
UNASKED = Rejection(
    "not guaranteed: the node's Topology Manager policy is unknown", True, Reason.KUBELET
)
UNPLACED = Rejection(
    "not guaranteed: the record does not say on which NUMA nodes the GPUs are "
    "(spec.devices[].topologyNodes)",
    True,
    Reason.KUBELET,
)
TOO_MUCH = Rejection(
    "not guaranteed: the node has too many possible outcomes to evaluate", True, Reason.UNDECIDED
)
NO_ALLOCATOR = Rejection(
    "neither a device plugin nor a DRA driver serves the node's GPUs", False, Reason.NO_ALLOCATOR
)
NOT_SERVED_BY_DRA = Rejection("the node's GPUs are not served by DRA", False, Reason.NOT_SERVED)
DRIVER_WAITS = Rejection(
    "the node's DRA driver has published no GPUs yet", False, Reason.NO_ALLOCATOR
)
OWN_CLAIMS_ONLY = Rejection(
    "no DeviceClass has extendedResourceName nvidia.com/gpu, so the pod needs a ResourceClaim "
    "(gpu-topology claim)",
    False,
    Reason.NO_ALLOCATOR,
)
INIT_UNDER_DRA = Rejection(
    "init containers with GPUs are not supported on a node with DRA", False, Reason.NO_ALLOCATOR
)
UNUSABLE = Rejection("topology record unusable", False, Reason.UNUSABLE)


@memoized
def busy(unit: str) -> Rejection:
    """Return :data:`BUSY` with the word for the devices that the pod would get here."""
    return BUSY if unit == "GPU" else Rejection(f"not enough free {unit}s", True, Reason.BUSY)


@memoized
def too_few(unit: str) -> Rejection:
    """Return :data:`TOO_FEW` with the word for the devices that the pod would get here."""
    if unit == "GPU":
        return TOO_FEW
    return Rejection(f"node has fewer {unit}s than requested", False, Reason.TOO_FEW)


def hardware_rejection(kubelet: DeviceManager, request: GpuRequest) -> Rejection | None:
    """Return why no set of this hardware could ever meet the request; None if one could.

    The text names the key that excludes the hardware. If GPUs are shared, keys that are not about
    pairs need only as many GPUs as have the shares.
    """
    wanted, count = request.constraints, request.count
    if wanted.exclusive_gpus and count % kubelet.replicas:
        each = f"{unit_of(kubelet.shape)}s have {kubelet.replicas} shares each"
        return Rejection(
            f"sharing=exclusive: {each}, and the pod must request all shares of each",
            False,
            Reason.SHARES,
        )
    if kubelet.shape.of_mig:
        return _ruled_out(kubelet, wanted, count)
    if wanted.same_gpu and count > kubelet.replicas:
        words = "GPUs are not shared" if kubelet.replicas == 1 else "GPUs have fewer shares"
        return Rejection(
            f"{words}: no {set_of(count)} is on one GPU (same-gpu)", False, Reason.SHARES
        )
    if wanted.exclusive_gpus:  # the pod gets whole GPUs, and these have to meet the other keys
        count //= kubelet.replicas
    elif kubelet.replicas > 1 and not wanted.over_pairs:
        count = -(-count // kubelet.replicas)
    return _ruled_out(kubelet, wanted, count)


def set_of(count: int, which: str = "", unit: str = "GPU") -> str:
    """Return the text for a set of GPUs, or of other units.

    >>> set_of(1), set_of(2, "free "), set_of(2, unit="MIG instance")
    ('GPU', 'set of 2 free GPUs', 'set of 2 MIG instances')
    """
    return f"{which}{unit}" if count == 1 else f"set of {count} {which}{unit}s"


def unit_of(shape: Shape) -> str:
    """Return the word for the unit of this shape, a GPU or a MIG instance."""
    return "MIG instance" if shape.of_mig else "GPU"


def device_unit(kubelet: DeviceManager) -> str:
    """Return the word for one device of this node: a GPU, a share of one, or a MIG instance."""
    if kubelet.replicas == 1:
        return unit_of(kubelet.shape)
    return "MIG instance share" if kubelet.shape.of_mig else "GPU share"


def _other_model(shape: Shape, there: Collection[int], wanted: Constraints) -> Rejection:
    """Return the rejection for too few GPUs of a wanted model.

    If there are none, the text names the models that there are.
    """
    words = f"too few GPUs are of the model {first_few(wanted.models)}"
    meant = of_models(shape, wanted.models)
    if not any(meant >> p & 1 for p in there):
        others = first_few(sorted({shape.products[p] for p in there}))
        words = f"GPU model is {others}, not {first_few(wanted.models)}"
    return Rejection(words, False, Reason.MODEL)


def _too_little(
    shape: Shape, there: Collection[int], wanted: Constraints, replicas: int
) -> Rejection:
    """Return the rejection for GPUs with too little memory, or too little for a pod that shares
    them."""
    least, unit = wanted.least_memory(1), unit_of(shape)
    few = memory_text(least)
    words = f"{unit} memory is less than {few}"
    if replicas > 1 and any(shape.memory[p] >= least for p in there):
        words = f"each share's part of the {unit} memory (1/{replicas}) is less than {few}"
    return Rejection(words, False, Reason.MEMORY)


@memoized
def _ruled_out(kubelet: DeviceManager, wanted: Constraints, count: int) -> Rejection | None:
    """Return the first thing that the hardware lacks for ``count`` GPUs or MIG instances."""
    shape, unit = kubelet.shape, unit_of(kubelet.shape)
    usable = positions(shape.all_gpus & ~shape.in_mig_mode)
    if shape.of_mig:
        if wanted.over_links and count > 1:
            words = f"MIG instances have no links, and the pod requires {wanted.text}"
            return Rejection(words, False, Reason.LINKS)
    elif len(usable) < count:
        if not shape.in_mig_mode:  # shared GPUs: enough shares, but on too few GPUs
            return TOO_FEW
        return TOO_FEW_WHOLE if usable else SPLIT_BY_MIG

    def lacking(meeting: Iterable[int]) -> bool:
        mask = sum(1 << p for p in meeting)
        return (kubelet.devices_on(mask) if shape.of_mig else mask.bit_count()) < count

    meant = of_models(shape, wanted.models)
    if lacking(p for p in usable if meant >> p & 1):
        return _other_model(shape, usable, wanted)
    least, near = wanted.least_memory(kubelet.replicas), wanted.nic
    if lacking(p for p in usable if shape.memory[p] >= least):
        return _too_little(shape, usable, wanted, kubelet.replicas)
    if near is not None and lacking(p for p, kind in enumerate(shape.nic) if kind >= near):
        words = f"too few {unit}s have an RDMA NIC as near as {near.name.lower()}"
        return Rejection(words, False, Reason.NIC)
    # A pod that gets all shares of its GPUs is counted in GPUs here.
    test = compiled(shape, wanted, 0, 1 if wanted.exclusive_gpus else kubelet.replicas)
    if _has_set(kubelet, test, count):
        return None
    words = f"the hardware has no {set_of(count, unit=unit)} with {wanted.text}"
    return Rejection(words, False, Reason.LINKS if wanted.over_links else Reason.HARDWARE)


def _has_set(kubelet: DeviceManager, test: CompiledConstraints, count: int) -> bool:
    """Check whether the empty hardware has a set that passes. True if there are too many sets to
    try."""
    shape = kubelet.shape
    if shape.of_mig:
        pool = pack((kubelet.devices_on(1 << p) for p in range(shape.size)), kubelet.width)
        return passing_choices(shape, test, pool, count, kubelet.width)[1]
    if test.known is not None:
        return any(good.bit_count() == count for good in test.good_sets(count))
    if comb(test.allowed.bit_count(), count) > most_sets(shape.size, 1):
        return True
    good, sure = test.passing(subset_masks(test.allowed, count), count)
    return not sure or bool(good.any())


def certain_refusal(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest, foreseen: PodOutcomes
) -> Rejection | None:
    """Return why the kubelet surely refuses the pod now, or gives it a sick GPU.

    None if the kubelet may admit the pod to healthy GPUs. A refusal is resolvable if the node might
    hand something out after every running pod has ended.
    """
    if not _refuses(foreseen):
        return ALL_SICK if foreseen.surely_has(availability.sick, kubelet) else None
    answers = provider_answers(
        kubelet,
        availability.numa_free_for(kubelet, endings=False),
        request.counts,
        only_gpu_plugin=request.only_gpu_plugin,
        exclusive=request.exclusive,
    )
    numa = kubelet.config.numa
    numa_free = None if numa is None or availability.numa_free is None else emptied(numa)
    alone = pod_outcomes(
        kubelet,
        Availability(
            availability.widest(endings=True),
            width=availability.width,
            gone=availability.gone,
            numa_free=numa_free,
        ),
        request.counts,
        request.only_gpu_plugin,
        request.exclusive,
    )
    resolvable = not _refuses(alone)
    of_plugin = kubelet.allocator.words(foreseen.hazards)
    if of_plugin and kubelet.allocator.broken:
        words = of_plugin
    elif SEVERAL in foreseen.hazards:
        words = "NVIDIA's device plugin refuses a container that requests more than one share"
    elif answers.refused:
        words = answers.reason
    elif AFFINITY in foreseen.hazards:
        words = _affinity_words(kubelet, availability, request, resolvable)
    elif of_plugin:
        words = of_plugin
    else:
        # There are enough devices in total, but too few for one of the containers.
        return busy(device_unit(kubelet))
    return Rejection(words, resolvable, Reason.KUBELET)


def _refuses(foreseen: PodOutcomes) -> bool:
    return foreseen.sets == () and bool(foreseen.hazards) and SPENT not in foreseen.hazards


def _affinity_words(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest, resolvable: bool
) -> str:
    """Return the text for the resources that cannot be aligned.

    These are the GPUs, and also CPUs and memory if the GPUs alone could be aligned.
    """
    policy = kubelet.config.topology_manager_policy
    some = _to_align(kubelet, availability, request)
    if not resolvable:
        return f"Topology Manager {policy}: the node can never align {some}"
    if policy == "single-numa-node":
        return f"Topology Manager {policy}: no NUMA node has {some} free"
    return (
        f"Topology Manager {policy}: the free devices for {some} are spread over too many NUMA "
        "nodes"
    )


def _to_align(kubelet: DeviceManager, availability: Availability, request: GpuRequest) -> str:
    most = max(n for _, n in request.counts)
    unit = unit_of(kubelet.shape)
    words = [f"1 {unit}" if most == 1 else f"{most} {unit}s"]
    asked = [demand for demand in request.exclusive.demands if demand.devices]
    cpus = max((demand.cpus for demand in asked), default=0)
    memory = max((dict(demand.memory).get("memory", 0) for demand in asked), default=0)
    demands = tuple(demand._replace(memory=()) for demand in request.exclusive.demands)
    without_memory = Exclusive(cpus=request.exclusive.cpus, demands=demands)
    if cpus and not _refused_to(kubelet, availability, request, Exclusive.NOTHING):
        words.append(f"{cpus} CPU{'s' if cpus > 1 else ''}")
    if memory and not _refused_to(kubelet, availability, request, without_memory):
        words.append(f"{memory_text(memory)} of memory")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _refused_to(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest, exclusive: Exclusive
) -> bool:
    """Check whether the kubelet would refuse the pod if it had these exclusive CPUs and memory."""
    key = availability.outcome_key(endings=False, exclusive=exclusive)
    return _refuses(pod_outcomes(kubelet, key, request.counts, request.only_gpu_plugin, exclusive))
