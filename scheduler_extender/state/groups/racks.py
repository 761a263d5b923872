"""How much of an NVLink rack is free: what tells a rack that is in use from a whole one.

A pod that needs no rack had better go where it breaks into none, and else into the fullest one, so
that whole racks stay whole for the groups that need them. It matters from the moment that some
group's pods ask for one: in a cluster without such groups a tray is a node like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_extender.state.node.facts import NodeFacts

SMALLEST = 2
"""Nodes of an NVLink domain that is a rack: a single machine may report a domain of its own."""


def room_of(trays: Sequence[NodeFacts], resource: str) -> int:
    """One more than the devices that are left on a rack's nodes; 0 where they are no rack."""
    if len(trays) < SMALLEST:
        return 0
    return 1 + sum(
        devices_left(facts, resource) for facts in trays if not facts.node_object.cordoned
    )


def devices_left(facts: NodeFacts, resource: str) -> int:
    """The devices that are left on a node; 0 where nobody can tell."""
    try:
        return max(0, facts.devices_left(resource))
    except Exception:  # noqa: BLE001 (a fault of ours shows when the node is asked)
        return 0
