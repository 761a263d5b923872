"""The devices that a device plugin may choose: the outcomes for a set of devices and a size.

An allocator models a *named policy* that a node reports. :mod:`.protocol` defines the interface and
says how to write another allocator: a file here, and a line in :data:`ALLOCATORS`. The kubelet's
own stages come before the allocator (:mod:`topology.core.admission`).

========================  =====================================================================
``any``                   assumes nothing; also stands for a policy that is not modelled
                          (:mod:`.unmodelled`)
``best-effort``           NVIDIA's plugin over whole GPUs (:mod:`.best_effort`)
``distributed, packed``   NVIDIA's plugin over replicas (:mod:`.greedy`)
``dra``                   kube-scheduler itself, if a DRA driver publishes the GPUs (:mod:`.dra`)
========================  =====================================================================

While a GPU does not answer the driver, an outage replaces the policy over whole GPUs
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
        """Return :data:`ANY`, because a policy that is not modelled may do anything."""
        return ANY


# The model of each policy by its name; :data:`ANY` for a name that is not listed.
ALLOCATORS = _ByPolicy({a.name: a for a in (ANY, BEST_EFFORT, DISTRIBUTED, PACKED, DRA)})
