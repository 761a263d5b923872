"""The mix of requests that the cluster has been seeing: what scores weigh the future by."""

from topology.core.mig import MIG_RESOURCE
from topology.core.requests import GpuRequest
from topology.core.scoring import PRIOR, Mix, RequestClass

MEMORY = 200.0  # pods; the weight of a pod fades to 1/e over so many later ones
# How many pods the prior is worth at the start; it fades like everything else, down to a tenth.
PRIOR_PODS = 20.0
# Scores are weighed anew after so many pods, not after each: they stay remembered in between.
REFRESH = 32
MAX_KINDS = 8


class RequestMix:
    """Counts requests by kind, the latest weighing most.

    >>> mix = RequestMix()
    >>> mix.current == PRIOR
    True
    """

    def __init__(self) -> None:
        self._weights: dict[RequestClass, float] = {}
        self._prior = PRIOR_PODS
        self._seen = 0
        self.current: Mix = PRIOR

    def observe(self, request: GpuRequest) -> None:
        """Count the request of a pod that is seen for the first time.

        Pods that ask for MIG instances by profile say nothing about pods that want GPUs.
        """
        if MIG_RESOURCE in request.resource:
            return
        fade = 1 - 1 / MEMORY
        for kind in self._weights:
            self._weights[kind] *= fade
        self._prior = max(self._prior * fade, PRIOR_PODS / 10)
        kind = RequestClass(request.count, request.constraints)
        self._weights[kind] = self._weights.get(kind, 0.0) + 1
        self._seen += 1
        if self._seen % REFRESH == 0:
            self.current = self._mix()

    def _mix(self) -> Mix:
        weights = {kind: self._prior * share for kind, share in PRIOR}
        for kind, weight in self._weights.items():
            weights[kind] = weights.get(kind, 0.0) + weight
        top = sorted(weights.items(), key=lambda item: (-item[1], repr(item[0])))[:MAX_KINDS]
        whole = sum(weight for _, weight in top)
        self._weights = {k: w for k, w in self._weights.items() if w > 0.01}
        # In an order of their own: what is remembered of kinds outlives a change of weights.
        return tuple(
            (kind, round(weight / whole, 2))
            for kind, weight in sorted(top, key=lambda item: repr(item[0]))
        )
