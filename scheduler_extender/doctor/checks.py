"""The table of checks. Each check is a function from the observations to findings."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping

from scheduler_extender.annotations import UNASKED
from scheduler_extender.doctor.findings import Finding, fail, ok, unseen, warn
from scheduler_extender.doctor.installationchecks import (
    DOOR,
    certificates,
    extender,
    policies,
    resource,
    scheduler,
)
from scheduler_extender.doctor.nodechecks import agents, clocks, features, kubelets, plugin
from scheduler_extender.doctor.observations import (
    PROBE,
    Seen,
    Unseen,
    there,
)
from scheduler_extender.explain.answers import counts_of
from scheduler_extender.explain.groupfit import judge
from scheduler_extender.explain.wording import listed
from scheduler_extender.files import podfile

BY_NAME = "docs/tasks/claims.md#request-by-the-name-of-the-deviceclass"


def probe(seen: Seen) -> Iterator[Finding]:
    """Check whether a pod with one GPU and a required constraint would be placed."""
    for each in seen.answered:
        if each.problem:
            yield fail(
                f"the extender does not answer a request made with {each.where}: {each.problem}",
                "correct the address or the files",
                DOOR,
            )
        else:
            yield ok(
                f"the extender answers a request made with {each.where}: {each.takes} of "
                f"{each.nodes} nodes take a pod with one GPU"
            )
    cluster = there(seen.cluster)
    if cluster is None:
        return
    pods = (pod for pod in cluster.snapshot().pods if pod.unasked and not pod.ended)
    if names := sorted(pod.full_name for pod in pods):
        yield warn(f"{listed(names)}: {UNASKED}", "change these pods", BY_NAME)
    (judged,) = judge(cluster, [podfile.read(json.dumps(PROBE))]).judged
    counts = counts_of(judged.answers)
    if counts.takes:
        yield ok(f"a pod with one GPU: {counts.headline}")
    else:
        yield warn(
            f"a pod with one GPU: {counts.headline}",
            "look at each node's reason",
            "docs/reference/commands.md#nodes",
        )


Check = Callable[[Seen], Iterable[Finding]]
# In the order in which a person would check. Each check has the names of the observations without
# which it cannot find anything.
CHECKS: Mapping[str, tuple[Check, tuple[str, ...]]] = {
    "resource": (resource, ("crd",)),
    "policies": (policies, ("policies",)),
    "extender": (extender, ("extender", "lease")),
    "certificates": (certificates, ()),
    "scheduler": (scheduler, ()),
    "plugin": (plugin, ("records",)),
    "features": (features, ("nodes",)),
    "agents": (agents, ("records",)),
    "kubelets": (kubelets, ("records",)),
    "clocks": (clocks, ()),
    "probe": (probe, ()),
}


def judged(seen: Seen) -> dict[str, list[Finding]]:
    """Return the findings of each check, at least one for each."""
    found: dict[str, list[Finding]] = {}
    for name, (check, needs) in CHECKS.items():
        parts = [getattr(seen, part) for part in needs]
        dark = dict.fromkeys(part.why for part in parts if isinstance(part, Unseen))
        said = [unseen(why) for why in dark] or list(check(seen))
        found[name] = said or [unseen("nothing could be read for this check")]
    return found
