"""Why a node is refused: one value for each reason, and what the hardware itself rules out."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from topology.core.budget import most_sets
from topology.core.graph import Shape
from topology.core.patterns import subset_masks
from topology.core.placement.constraints import compiled, model_meets
from topology.core.remembering import remembered
from topology.core.requests import Constraints, GpuRequest, memory_text


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a node is refused. The text depends on the request alone and never varies with time.

    ``resolvable`` says whether evicting pods could help.
    """

    reason: str
    resolvable: bool


NOT_SERVED = Rejection("node does not serve the GPU resource asked for", resolvable=False)
TOO_FEW = Rejection("node has fewer GPUs than asked for", resolvable=False)
BUSY = Rejection("not enough free GPUs", resolvable=True)
SPLIT = Rejection("GPUs are split by MIG, which carries no topology", resolvable=False)
IN_PROGRESS = Rejection("another GPU placement on the node is in progress", resolvable=True)
NO_REPORT = Rejection("no topology report", resolvable=False)
STALE = Rejection("topology report is stale", resolvable=False)
NOT_READY = Rejection("topology report is not Ready", resolvable=False)
UNASKED = Rejection(
    "not guaranteed: the node's Topology Manager policy is unknown", resolvable=True
)
TOO_MUCH = Rejection("not guaranteed: too much to work out for this node", resolvable=True)
DRA_ONLY = Rejection("GPUs are advertised through DRA only", resolvable=False)
UNUSABLE = Rejection("topology record unusable", resolvable=False)


def hardware_rejection(shape: Shape, request: GpuRequest, shared: bool) -> Rejection | None:
    """Why no set of this hardware could ever do, naming the key that rules it out.

    Where GPUs are ``shared``, keys that do not speak about pairs can be met by one GPU.
    """
    wanted = request.constraints
    count = 1 if shared and not wanted.over_pairs else request.count
    return _ruled_out(shape, wanted, count)


def set_of(count: int, which: str = "") -> str:
    """A set of GPUs in words.

    >>> set_of(1), set_of(2, "free ")
    ('GPU', 'set of 2 free GPUs')
    """
    return f"{which}GPU" if count == 1 else f"set of {count} {which}GPUs"


@remembered
def _ruled_out(shape: Shape, wanted: Constraints, count: int) -> Rejection | None:
    if any(shape.mig):
        return SPLIT
    everything = range(shape.size)
    if sum(model_meets(shape, p, wanted) for p in everything) < count:
        return Rejection(f"GPU model is not {wanted.models_text}", resolvable=False)
    least = wanted.min_gpu_memory
    if least is not None and sum(shape.memory[p] >= least for p in everything) < count:
        return Rejection(f"GPU memory is under {memory_text(least)}", resolvable=False)
    if wanted.nic is not None and sum(k >= wanted.nic for k in shape.nic) < count:
        words = f"too few GPUs have an RDMA NIC as near as {wanted.nic.name.lower()}"
        return Rejection(words, resolvable=False)
    test = compiled(shape, wanted, 0)
    if comb(test.allowed.bit_count(), count) > most_sets(shape.size, 1):
        return None  # not ruled out; trying them all would hold everybody up
    good, sure = test.passing(subset_masks(test.allowed, count), count)
    if sure and not good.any():
        words = f"the hardware has no {set_of(count)} with {wanted.text}"
        return Rejection(words, resolvable=False)
    return None
