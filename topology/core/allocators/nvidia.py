"""The failures and refusals that all policies of NVIDIA's device plugin have in common.

*While a GPU does not answer the driver*, the plugin cannot choose whole GPUs. It first reads every
GPU that the driver counts, and then looks up the GPUs that it may choose from. A missing GPU makes
one of these steps fail:

* A GPU that the driver still counts, as after Xid 79 (*lost*), makes the first step fail, whatever
  GPUs the plugin may choose from.
* A GPU that the driver no longer counts (*gone*) makes the second step fail if it is among the GPUs
  to choose from. A plugin that opened the driver earlier still counts it and fails at once.

The plugin then answers with an error, and the kubelet refuses the pod (UnexpectedAdmissionError).
The plugin chooses shared GPUs and MIG devices without the driver. The number of devices that a
container asks for makes no difference. But the kubelet does not ask the plugin if there is no
choice: if devices of init containers cover the container, or if it gets all free devices of its
NUMA nodes.

*Several shares.* The plugin may refuse a container more than one share of GPUs.

*MIG instances.* If they are not shared, each is a group of its own for the plugin. The plugin
treats all groups alike, so any instance may come.

Sources: k8s-device-plugin 0.17.4 to 0.19.3 (``alignedAlloc``) and go-gpuallocator 0.5 and 0.6
(``NewDevices``, ``Filter``), read and run; issues 231 (0.7) and 2038 (0.18.1) of the plugin.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from topology.core.allocators.protocol import ANYTHING, Allocator, Call, Outcomes, every_choice
from topology.core.devices import GpuResource, GpuUuid, Mask
from topology.core.graph import AllocatorConfig, NodeTopology, plugin_version
from topology.core.mig import MIG
from topology.core.report import MissingGpu

# The plugin may fail over a GPU that does not answer (UnexpectedAdmissionError).
MISSING = "missing-gpu"
# The first and the last version known to fail. The first one is the first that prefers any devices,
# the last one is the newest that we know of. A fix (k8s-device-plugin's pull request 2039) was open
# when this was written. So later versions may fail or may hand out any GPUs.
FAILS_SINCE, FAILS_UP_TO = (0, 7), (0, 20, 0)
# From this version on, an option makes the plugin refuse more than one MPS share. It is on by
# default. Earlier versions refuse all such requests.
REFUSES_SEVERAL_SINCE = (0, 20)


class NvidiaPlugin(Allocator):
    """A policy of NVIDIA's plugin."""

    def on_node(
        self, topology: NodeTopology, resource: GpuResource, missing: tuple[MissingGpu, ...]
    ) -> Allocator:
        """Return the outage if whole GPUs are missing, and any devices for MIG instances not
        shared."""
        if missing and resource.strategy == "none":
            return outage(topology, missing)
        alike = resource.strategy == MIG and resource.replicas == 1
        return ANYTHING if alike and self.name != ANYTHING.name else self

    def refuses_several(self, topology: NodeTopology, resource: GpuResource) -> bool | None:
        """Check whether the plugin refuses a container more than one share; False if nothing is
        shared."""
        if resource.strategy == "none" or (resource.strategy == MIG and resource.replicas == 1):
            return False
        version = plugin_version(topology.allocator.plugin_version)
        if resource.strategy == "mps" and version is not None and version < REFUSES_SEVERAL_SINCE:
            return True
        return resource.refuses_several


@dataclass(frozen=True, slots=True)
class Outage(Allocator):
    """The allocator of a node with missing whole GPUs."""

    names: tuple[str, ...]  # of the missing GPUs
    lost: bool  # whether the driver still counts one of them
    gone: Mask  # the GPUs that it no longer counts
    certain: bool  # whether this version of the plugin is known to fail because of them
    version: str  # the plugin's version in the node's record; empty if it is unknown

    name = "outage"
    broken = True

    @property
    def hazards(self) -> Mapping[str, str]:  # type: ignore[override]
        """The only refusal, by name. Its text names only the first of many GPUs, so that it stays
        short."""
        plugin = " ".join(filter(None, ("NVIDIA's device plugin", self.version.removeprefix("v"))))
        first, more = self.names[0], len(self.names) - 1
        some = f"{first} and {more} more do" if more else f"{first} does"
        return {MISSING: f"{plugin} refuses every pod with whole GPUs while {some} not answer"}

    def outcomes(self, call: Call) -> Outcomes:
        """Return no set if the plugin surely fails, else every choice, with the hazard that it
        fails."""
        fails = self.lost or bool(call.available & self.gone)
        if fails and self.certain:
            return Outcomes((), hazards=(MISSING,))
        return every_choice(call, exact=False, hazards=(MISSING,))

    def under(self, config: AllocatorConfig, *, whole: bool) -> Allocator:
        """Return an outage that is uncertain if the GPUs that the plugin is asked about are
        unknown."""
        return replace(self, certain=False) if config.aligned_anyhow else self


def outage(topology: NodeTopology, missing: tuple[MissingGpu, ...]) -> Outage:
    """Return the outage that these missing GPUs cause."""
    at, version = topology.position_of_uuid, topology.allocator.plugin_version
    numbers = plugin_version(version)
    return Outage(
        tuple(gpu.name for gpu in missing),
        any(gpu.counted for gpu in missing),
        sum(1 << at[GpuUuid(gpu.name)] for gpu in missing if not gpu.counted and gpu.name in at),
        numbers is not None and FAILS_SINCE <= numbers <= FAILS_UP_TO,
        version or "",
    )
