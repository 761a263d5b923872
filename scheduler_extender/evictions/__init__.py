"""Which evictions help: pure functions over the facts of nodes.

- ``victims`` says who may be evicted on one node, and whether a place appears without them; and it
  finds better victims than kube-scheduler's;
- ``relocation`` simulates where evicted pods would go, and says where CPU and memory are left;
- ``search`` finds the cheapest plan of the whole cluster, and ``plan`` is what it finds, in words.
"""

from scheduler_extender.evictions.plan import Advice, Cost, Plan, Step
from scheduler_extender.evictions.search import lost, search, unplanned

__all__ = [
    "Advice",
    "Cost",
    "Plan",
    "Step",
    "lost",
    "search",
    "unplanned",
]
