"""The evictions that would help: pure functions over the infos of nodes.

- ``victims`` finds the pods that may be evicted on one node, checks whether a placement is
  possible without them, and finds better victims than kube-scheduler's;
- ``relocation`` simulates where evicted pods would go, and where CPU and memory are left;
- ``search`` finds the cheapest plan in the whole cluster, and ``plan`` holds it, and its text.
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
