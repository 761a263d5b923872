"""Pods for which any devices will do: what holds for all choices is told at once."""

from __future__ import annotations

from topology.core.admission import Kubelet, indifferent
from topology.core.placement.constraints import always_met
from topology.core.requests import Constraints, Counts


def indifferent_to(kubelet: Kubelet, counts: Counts, constraints: Constraints) -> Kubelet | None:
    """The same node as if any devices might come, as :func:`.indifferent` has it.

    None, too, for a pod with several devices of which some sets are no good to it: there the wider
    question would mostly be asked for nothing.
    """
    several = sum(count for _, count in counts) > 1
    if several and not always_met(kubelet.shape, constraints, kubelet.replicas):
        return None
    return indifferent(kubelet, counts)
