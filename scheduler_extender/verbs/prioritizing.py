"""prioritize: a score for each node that passed, by what the placement costs the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.enquiry import enquire, remembered, scores
from scheduler_extender.wire import Pod


def prioritize(
    cluster: Cluster,
    pod: Pod,
    names: Sequence[str],
    seconds: float = float("inf"),
    *,
    at_once: bool = False,
) -> list[dict[str, object]]:
    """A score from 0 to 10 for each offered node, an integer, in the order offered.

    ``seconds`` is for how long scores may be worked out; nodes that are left over then are scored
    as if we knew nothing of them. With ``at_once`` nothing is worked out, and
    :class:`.NotRememberedError` is raised where something would have to be.
    """
    names = list(dict.fromkeys(names))
    request = parse(pod, cluster.settings.managed)
    if request is None or isinstance(request, Malformed):
        return [{"Host": n, "Score": 0} for n in names]
    if not request.plain and cluster.blind():
        return [{"Host": n, "Score": 0} for n in names]
    if at_once:
        answered = remembered(cluster, request, names, scores=True)
    else:
        answered = enquire(cluster, request, names, seconds=seconds, scores=True)
    return [{"Host": name, "Score": score} for name, score in scores(request, answered).items()]
