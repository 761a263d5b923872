"""The table of checks: each is a function from what was seen to what has to be said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from scheduler_extender.annotations import UNASKED
from scheduler_extender.doctor.findings import Finding, fail, ok, unseen, warn
from scheduler_extender.doctor.installed import (
    DOOR,
    certificates,
    extender,
    policies,
    resource,
    scheduler,
)
from scheduler_extender.doctor.onnodes import agents, clocks, features, kubelets, plugin
from scheduler_extender.doctor.seen import (
    PROBE,
    Seen,
    Unseen,
    there,
)
from scheduler_extender.files import podfile
from scheduler_extender.told.counts import counts_of
from scheduler_extender.told.together import judge
from scheduler_extender.told.words import listed

BY_NAME = "docs/dra.md#by-the-name-of-the-deviceclass"


def probe(seen: Seen) -> Iterator[Finding]:
    """Whether a pod with one GPU, of which something is required, would be placed."""
    for each in seen.answered:
        if each.problem:
            yield fail(
                f"asked by {each.where}, the extender gives no answer: {each.problem}",
                "mend the address or the files",
                DOOR,
            )
        else:
            yield ok(
                f"asked by {each.where}, the extender answers: {each.takes} of {each.nodes} "
                "nodes take a pod with one GPU"
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
            "see which nodes, and why",
            "docs/cli.md#nodes",
        )


@dataclass(frozen=True, slots=True)
class Check:
    """A check, and the parts of what was seen without which it can say nothing."""

    judge: Callable[[Seen], Iterable[Finding]]
    needs: tuple[str, ...] = ()


# In the order in which a person would look.
CHECKS: Mapping[str, Check] = {
    "resource": Check(resource, ("crd",)),
    "policies": Check(policies, ("policies",)),
    "extender": Check(extender, ("extender", "lease")),
    "certificates": Check(certificates),
    "scheduler": Check(scheduler),
    "plugin": Check(plugin, ("records",)),
    "features": Check(features, ("nodes",)),
    "agents": Check(agents, ("records",)),
    "kubelets": Check(kubelets, ("records",)),
    "clocks": Check(clocks),
    "probe": Check(probe),
}


def judged(seen: Seen) -> dict[str, list[Finding]]:
    """What each check has to say; at least one finding each."""
    found: dict[str, list[Finding]] = {}
    for name, check in CHECKS.items():
        parts = [getattr(seen, part) for part in check.needs]
        dark = dict.fromkeys(part.why for part in parts if isinstance(part, Unseen))
        said = [unseen(why) for why in dark] or list(check.judge(seen))
        found[name] = said or [unseen("nothing was seen of it")]
    return found
