"""The places that are kept for the members of groups that have started and wait for others."""

from collections.abc import Collection, Mapping

from scheduler_extender.deadline import Deadline
from scheduler_extender.framework.placecounter import PlaceCounter
from scheduler_extender.state.cluster.snapshot import Snapshot
from topology.core.devices import NodeName


def places_of_groups(
    snapshot: Snapshot, deadline: Deadline
) -> Mapping[NodeName, Collection[object]] | None:
    """The places by node; None where they are not counted in time."""
    counter = PlaceCounter(snapshot, deadline)
    kept: Mapping[NodeName, Collection[object]] = {}
    with deadline.ends():
        kept = counter.kept().kept
    return None if counter.late or deadline.passed() else kept
