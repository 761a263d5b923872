"""A policy of one's own: ``simulate --policy examples/simulation/policy.py:Tidy``.

kube-scheduler's filters come first; ``score`` is asked once for each state that nodes are in.
"""

from benchmarks.simulation.fleet import SimPod, State
from benchmarks.simulation.policy import ByState


class Tidy(ByState):
    """The node that would be left with the fewest free GPUs."""

    def score(self, pod: SimPod, state: State) -> float:
        """Larger is better; None would refuse the node."""
        return -(state.left - pod.ask.gpus)
