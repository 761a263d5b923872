"""What a device plugin may prefer: from a pool and a size, the outcomes.

An allocator is a *named policy* that a node reports. :mod:`.protocol` says what one is and how to
write another: a file here, and a line in :data:`ALLOCATORS`. The kubelet's own stages stand before
it (:mod:`topology.core.admission`).

========================  =====================================================================
``any``                   assumes nothing; also the answer to a policy that we do not model
                          (:mod:`.unmodelled`)
``best-effort``           NVIDIA's plugin over whole GPUs (:mod:`.best_effort`)
``distributed, packed``   NVIDIA's plugin over replicas (:mod:`.greedy`)
``dra``                   kube-scheduler itself, where a DRA driver publishes the GPUs (:mod:`.dra`)
========================  =====================================================================

While a GPU does not answer the driver, an outage takes the policy's place over whole GPUs
(:mod:`.nvidia`).
"""

from topology.core.allocators.best_effort import BEST_EFFORT
from topology.core.allocators.dra import DRA
from topology.core.allocators.greedy import DISTRIBUTED, PACKED
from topology.core.allocators.protocol import (
    Allocator,
    Call,
    Ints,
    Outcomes,
    every_set,
    of_every_pool,
)
from topology.core.allocators.unmodelled import ANY

__all__ = [
    "ALLOCATORS",
    "ANY",
    "DRA",
    "Allocator",
    "Call",
    "Ints",
    "Outcomes",
    "every_set",
    "of_every_pool",
]


class _ByPolicy(dict[str, Allocator]):
    def __missing__(self, policy: str) -> Allocator:
        """A policy that we do not model may do anything."""
        return ANY


ALLOCATORS = _ByPolicy({a.name: a for a in (ANY, BEST_EFFORT, DISTRIBUTED, PACKED, DRA)})
"""The model of each policy; of one that is not listed :data:`ANY`."""
