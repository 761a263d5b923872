"""Why a node is refused: one value for each reason, and what the hardware itself rules out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import comb

from topology.core.admission import Kubelet
from topology.core.budget import most_sets
from topology.core.devices import positions
from topology.core.patterns import subset_masks
from topology.core.placement.constraints import compiled, model_meets
from topology.core.placement.instances import passing_share
from topology.core.placement.reasons import Reason
from topology.core.pools import pack
from topology.core.remembering import remembered
from topology.core.requests import Constraints, GpuRequest, first_few, memory_text
from topology.core.shape import Shape


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a node is refused. The text depends on the request and on what the node is, and never
    varies with time.

    ``resolvable`` says whether evicting pods could help. ``kind`` is the reason without its
    details; two rejections with the same words have the same.
    """

    reason: str
    resolvable: bool
    kind: Reason = field(default=Reason.OTHER, compare=False)


NOT_SERVED = Rejection("node does not serve the GPU resource asked for", False, Reason.NOT_SERVED)
TOO_FEW = Rejection("node has fewer GPUs than asked for", False, Reason.TOO_FEW)
BUSY = Rejection("not enough free GPUs", True, Reason.BUSY)
TOO_FEW_WHOLE = Rejection("too few GPUs that are not split by MIG", False, Reason.SPLIT)
SPLIT = Rejection("GPUs are split by MIG, which carries no topology", False, Reason.SPLIT)
IN_PROGRESS = Rejection(
    "another GPU placement on the node is in progress", True, Reason.IN_PROGRESS
)
NO_REPORT = Rejection("no topology report", False, Reason.NO_REPORT)
STALE = Rejection("topology report is stale", False, Reason.STALE)
NOT_READY = Rejection("topology report is not Ready", False, Reason.NOT_READY)
UNASKED = Rejection(
    "not guaranteed: the node's Topology Manager policy is unknown", True, Reason.KUBELET
)
TOO_MUCH = Rejection("not guaranteed: too much to work out for this node", True, Reason.UNDECIDED)
DRA_ONLY = Rejection("GPUs are advertised through DRA only", False, Reason.DRA_ONLY)
UNUSABLE = Rejection("topology record unusable", False, Reason.UNUSABLE)


@remembered
def busy(unit: str) -> Rejection:
    """:data:`BUSY`, in the word for what the pod would get here."""
    return BUSY if unit == "GPU" else Rejection(f"not enough free {unit}s", True, Reason.BUSY)


@remembered
def too_few(unit: str) -> Rejection:
    """:data:`TOO_FEW`, in the word for what the pod would get here."""
    if unit == "GPU":
        return TOO_FEW
    return Rejection(f"node has fewer {unit}s than asked for", False, Reason.TOO_FEW)


def hardware_rejection(kubelet: Kubelet, request: GpuRequest) -> Rejection | None:
    """Why no set of this hardware could ever do, naming the key that rules it out.

    Where GPUs are shared, keys that do not speak about pairs can be met by one GPU.
    """
    wanted, count = request.constraints, request.count
    if wanted.exclusive_gpus and count % kubelet.replicas:
        each = f"{unit_of(kubelet.shape)}s have {kubelet.replicas} shares"
        return Rejection(
            f"sharing=exclusive: {each}, the pod has to ask for all of each", False, Reason.SHARES
        )
    if kubelet.shape.of_mig:
        return _instances_ruled_out(kubelet, wanted, count)
    if wanted.same_gpu and count > kubelet.replicas:
        words = "GPUs are not shared" if kubelet.replicas == 1 else "GPUs have fewer shares"
        return Rejection(
            f"{words}: no {set_of(count)} is on one GPU (same-gpu)", False, Reason.SHARES
        )
    if wanted.exclusive_gpus:  # it gets whole GPUs, and the rest is asked of these
        count //= kubelet.replicas
    elif kubelet.replicas > 1 and not wanted.over_pairs:
        count = 1
    return _ruled_out(kubelet.shape, wanted, count, kubelet.replicas)


def set_of(count: int, which: str = "", unit: str = "GPU") -> str:
    """A set of GPUs in words, or of other units.

    >>> set_of(1), set_of(2, "free "), set_of(2, unit="MIG instance")
    ('GPU', 'set of 2 free GPUs', 'set of 2 MIG instances')
    """
    return f"{which}{unit}" if count == 1 else f"set of {count} {which}{unit}s"


def unit_of(shape: Shape) -> str:
    """What a pod gets here."""
    return "MIG instance" if shape.of_mig else "GPU"


def device_unit(kubelet: Kubelet) -> str:
    """What is counted here: a GPU, a share of one, or a MIG instance."""
    if kubelet.replicas == 1:
        return unit_of(kubelet.shape)
    return "MIG instance share" if kubelet.shape.of_mig else "GPU share"


@remembered
def _instances_ruled_out(kubelet: Kubelet, wanted: Constraints, count: int) -> Rejection | None:
    """The same for MIG instances, which are counted."""
    shape, unit = kubelet.shape, unit_of(kubelet.shape)
    if wanted.over_links and count > 1:
        words = f"MIG instances have no links to each other: {wanted.text}"
        return Rejection(words, False, Reason.LINKS)

    def devices(position_meets: Callable[[int], bool]) -> int:
        there = (p for p in range(shape.size) if position_meets(p))
        return kubelet.devices_on(sum(1 << p for p in there))

    if devices(lambda p: model_meets(shape, p, wanted)) < count:
        return _other_model(shape, range(shape.size), wanted)
    least, near = wanted.least_memory(kubelet.replicas), wanted.nic
    if devices(lambda p: shape.memory[p] >= least) < count:
        return _too_little(shape, range(shape.size), wanted, kubelet.replicas)
    if near is not None and devices(lambda p: shape.nic[p] >= near) < count:
        words = f"too few {unit}s have an RDMA NIC as near as {near.name.lower()}"
        return Rejection(words, False, Reason.NIC)
    everything = (kubelet.devices_on(1 << p) for p in range(shape.size))
    pool, test = pack(everything, kubelet.width), compiled(shape, wanted, 0)
    if passing_share(shape, test, pool, count, kubelet.width)[1]:
        return None
    words = f"the hardware has no {set_of(count, unit=unit)} with {wanted.text}"
    return Rejection(words, False, _of_sets(wanted))


def _other_model(shape: Shape, there: Collection[int], wanted: Constraints) -> Rejection:
    """That too few of the GPUs there are of a wanted model; where none is, what they are."""
    words = f"too few GPUs are {wanted.models_text}"
    if not any(model_meets(shape, p, wanted) for p in there):
        others = first_few(sorted({shape.products[p] for p in there}))
        words = f"GPU model is {others}, not {wanted.models_text}"
    return Rejection(words, False, Reason.MODEL)


def _too_little(
    shape: Shape, there: Collection[int], wanted: Constraints, replicas: int
) -> Rejection:
    """That a GPU has too little memory, or enough only for who has it alone."""
    least, unit = wanted.least_memory(1), unit_of(shape)
    few = memory_text(least)
    words = f"{unit} memory is under {few}"
    if replicas > 1 and any(shape.memory[p] >= least for p in there):
        words = f"a share's part of the {unit} memory, one of {replicas}, is under {few}"
    return Rejection(words, False, Reason.MEMORY)


@remembered
def _ruled_out(shape: Shape, wanted: Constraints, count: int, replicas: int) -> Rejection | None:
    everything = positions(shape.all_gpus & ~shape.in_mig_mode)
    if len(everything) < count:
        if not shape.in_mig_mode:  # of shared GPUs there are fewer than of their shares
            return TOO_FEW
        return TOO_FEW_WHOLE if everything else SPLIT
    if sum(model_meets(shape, p, wanted) for p in everything) < count:
        return _other_model(shape, everything, wanted)
    least = wanted.least_memory(replicas)
    if sum(shape.memory[p] >= least for p in everything) < count:
        return _too_little(shape, everything, wanted, replicas)
    if wanted.nic is not None and sum(k >= wanted.nic for k in shape.nic) < count:
        words = f"too few GPUs have an RDMA NIC as near as {wanted.nic.name.lower()}"
        return Rejection(words, False, Reason.NIC)
    test = compiled(shape, wanted, 0)
    words = f"the hardware has no {set_of(count)} with {wanted.text}"
    if test.known is not None:
        some = any(found.bit_count() == count for found in test.good_sets(count))
        return None if some else Rejection(words, False, _of_sets(wanted))
    if comb(test.allowed.bit_count(), count) > most_sets(shape.size, 1):
        return None  # not ruled out; trying them all would hold everybody up
    good, sure = test.passing(subset_masks(test.allowed, count), count)
    if sure and not good.any():
        return Rejection(words, False, _of_sets(wanted))
    return None


def _of_sets(wanted: Constraints) -> Reason:
    return Reason.LINKS if wanted.over_links else Reason.HARDWARE
