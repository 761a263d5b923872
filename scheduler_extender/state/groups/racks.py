"""How much of an NVLink rack is free: what tells a rack that is in use from a whole one.

A pod that needs no rack had better go where it breaks into none, and else into the fullest one, so
that whole racks stay whole for the groups that need them. It matters from the moment that some
group's pods ask for one: in a cluster without such groups a tray is a node like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_extender.state.node.facts import NodeFacts

SMALLEST = 2
"""Nodes of an NVLink domain that is a rack: a single machine may report a domain of its own."""


@dataclass(slots=True)
class Racks:
    """The room in each rack, as far as it is remembered. The cluster's lock guards it.

    ``wanted`` says that a pod has asked for its group to share an NVLink domain.
    """

    wanted: bool = False
    _rooms: dict[str, dict[str, int]] = field(default_factory=dict)

    def known(self, rack: str, resource: str) -> int | None:
        """The room in a rack, None where it is not remembered."""
        return self._rooms.get(rack, {}).get(resource)

    def remember(self, rack: str, resource: str, nodes: Iterable[NodeFacts]) -> int:
        """Work out the room in a rack of these nodes, and remember it until one of them changes."""
        trays = tuple(nodes)
        found = room_of(trays, resource) if len(trays) >= SMALLEST else 0
        self._rooms.setdefault(rack, {})[resource] = found
        return found

    def forget(self, rack: str | None) -> None:
        """A node of this rack has changed."""
        if rack is not None:
            self._rooms.pop(rack, None)


def room_of(trays: Iterable[NodeFacts], resource: str) -> int:
    """One more than the devices that are left on all of a rack's nodes: so it is never 0."""
    return 1 + sum(_left(facts, resource) for facts in trays if not facts.node_object.cordoned)


def _left(facts: NodeFacts, resource: str) -> int:
    """The devices that are left on a node; 0 where nobody can tell."""
    try:
        return max(0, facts.devices_left(resource))
    except Exception:  # noqa: BLE001 (a fault of ours shows when the node is asked)
        return 0
