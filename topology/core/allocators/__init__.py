"""What a device plugin may prefer: from a pool and a size, the outcomes.

An allocator is a *named policy* that a node reports. It never answers with one set but with every
set that the plugin may choose, or a superset of them that says so: a superset is sound, a subset is
a bug. The kubelet's own stages stand before it (:mod:`topology.core.admission`).

========================  =====================================================================
``any``                   assumes nothing; also the answer to a policy that we do not model. Where
                          the plugin is known to be NVIDIA's its refusals stay possible
                          (:class:`.best_effort.Unforeseen`)
``best-effort``           NVIDIA's plugin over whole GPUs (:mod:`.best_effort`)
``distributed, packed``   NVIDIA's plugin over replicas (:mod:`.greedy`)
========================  =====================================================================

While a GPU does not answer the driver, :mod:`.outage` takes the policy's place over whole GPUs.
"""

from __future__ import annotations

from topology.core.allocators.best_effort import BEST_EFFORT
from topology.core.allocators.greedy import DISTRIBUTED, PACKED
from topology.core.allocators.outcomes import Allocator, Call, Outcomes
from topology.core.allocators.unmodelled import ANY

__all__ = [
    "ALLOCATORS",
    "ANY",
    "DISTRIBUTED",
    "PACKED",
    "Allocator",
    "Call",
    "Outcomes",
    "allocator",
]

ALLOCATORS: dict[str, Allocator] = {a.name: a for a in (ANY, BEST_EFFORT, DISTRIBUTED, PACKED)}


def allocator(policy: str) -> Allocator:
    """The model of a policy; one that is not modelled is judged by :data:`ANY`."""
    return ALLOCATORS.get(policy, ANY)
