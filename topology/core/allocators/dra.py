"""``dra``: how kube-scheduler itself picks devices that a DRA driver publishes.

Under Dynamic Resource Allocation (DRA) no device plugin chooses. For a request for a number of
devices of one class, kube-scheduler takes the first free ones. It goes through pools by driver and
name, through slices by name, and through devices in the order in which they are published. It does
not look at links and prefers nothing.

Sources: k8s.io/dynamic-resource-allocation 0.36 and 0.37 (``structured/internal/incubating``), read
and run (tests/differential/test_claims.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from topology.core.allocators.protocol import Allocator, Call, Outcomes, every_choice
from topology.core.devices import GpuResource, Mask, positions
from topology.core.graph import NodeTopology
from topology.core.report import MissingGpu
from topology.core.shape import Shape


class Dra(Allocator):
    """kube-scheduler's own choice, in an unknown order: any devices may come."""

    name = "dra"
    serves_claims = True
    allocates_before_bind = True

    def outcomes(self, call: Call) -> Outcomes:
        """Return every choice."""
        return every_choice(call, exact=False)

    def never_refuses(self, shape: Shape, size: int, counts: frozenset[int] | None) -> bool:
        """Return True: it finds devices wherever enough are free."""
        return True

    def on_node(
        self, topology: NodeTopology, resource: GpuResource, missing: tuple[MissingGpu, ...]
    ) -> Allocator:
        """Return the allocator with the order in which this node's devices are published."""
        at, published = topology.position_of_index, topology.allocator.published
        return FirstFit(tuple(at[index] for index in published)) if published else self


@dataclass(frozen=True, slots=True)
class FirstFit(Dra):
    """The first free devices in an order of positions. Positions that are not in it come last.

    >>> from topology.machines import machine
    >>> shape = machine("a100-pcie-4-bridged").topology("n").shape
    >>> FirstFit((3, 1, 0, 2)).outcomes(Call(shape, available=0b0111, size=2)).sets
    (3,)
    """

    order: tuple[int, ...] = ()
    choice_known = True

    @property
    def usual(self) -> FirstFit:
        """The same allocator without an order."""
        return _IN_ANY_ORDER

    def in_turn(self, available: Mask) -> list[Mask]:
        """Return the devices in the order. Devices that are not in it come last."""
        found = [1 << position for position in self.order if available >> position & 1]
        return found + [1 << position for position in positions(available & ~sum(found))]

    def outcomes(self, call: Call) -> Outcomes:
        """Return the only set that can come."""
        chosen: Mask = call.required
        for position in (*self.order, *positions(call.available)):
            if chosen.bit_count() == call.size:
                break
            chosen |= call.available & 1 << position
        return Outcomes((chosen,))


DRA = Dra()
_IN_ANY_ORDER = FirstFit()
