"""What a node offers of one resource, by its record and its pods."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_extender.state.node.ledger import Ledger
from topology.core.admission import Kubelet
from topology.core.availability import Availability
from topology.core.devices import GpuResource
from topology.core.graph import NodeTopology
from topology.core.mig import ServedDevices, served_devices
from topology.core.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class Offer:
    """One resource of one node."""

    topology: NodeTopology
    resource: GpuResource  # as the device plugin serves it
    kubelet: Kubelet
    ledger: Ledger

    @property
    def availability(self) -> Availability:
        """What is free, and what may change it."""
        return self.ledger.availability

    @property
    def devices(self) -> ServedDevices:
        """The devices, by position."""
        return served_devices(self.topology, self.resource)

    def available_to(self, request: GpuRequest) -> Availability:
        """What is available to a pod, without CPUs and memory if none of them matter to it."""
        return self.availability.without_needless_room(request.exclusive)
