"""What all policies of NVIDIA's device plugin have in common: how it fails, and what it refuses.

*While a GPU does not answer the driver* the plugin prefers no whole GPUs. It first looks at every
GPU that the driver counts, and then up those it may choose from. Both fail over a missing GPU:

* one that the driver still counts, as after Xid 79 (*lost*), fails the first step, whichever GPUs
  are asked about;
* one that the driver does not count any more (*gone*) fails the second, if it is among them. A
  plugin that opened the driver earlier still counts it and fails at once.

The plugin then answers with an error, and the kubelet refuses the pod (UnexpectedAdmissionError).
It chooses shared GPUs and MIG devices without the driver. How many devices a container wants makes
no difference, but the kubelet does not ask where it has no choice: for a container that devices of
init containers cover, or one that gets all free devices of its NUMA nodes.

*Several shares.* The plugin may refuse a container more than one share of GPUs.

*MIG instances* that are not shared are each a group of its own to the plugin, and all groups are
alike: any may come.

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

MISSING = "missing-gpu"
"""The plugin may fail over a GPU that does not answer (UnexpectedAdmissionError)."""
FAILS_SINCE, FAILS_UP_TO = (0, 7), (0, 20, 0)
"""The versions that fail: the first that prefers anything, and the newest that we know of. A change
that mends it (k8s-device-plugin's pull request 2039) was open when this was written: later versions
may fail or may hand out any GPUs."""
REFUSES_SEVERAL_SINCE = (0, 20)
"""From this version on, refusing more than one MPS share is an option, on unless it is turned off;
before, all such requests are refused."""


class NvidiaPlugin(Allocator):
    """A policy of NVIDIA's plugin."""

    def on_node(
        self, topology: NodeTopology, resource: GpuResource, missing: tuple[MissingGpu, ...]
    ) -> Allocator:
        """The outage where GPUs are missing; any devices where these are MIG instances."""
        if missing and resource.strategy == "none":
            return outage(topology, missing)
        alike = resource.strategy == MIG and resource.replicas == 1
        return ANYTHING if alike and self.name != ANYTHING.name else self

    def refuses_several(self, topology: NodeTopology, resource: GpuResource) -> bool | None:
        """Whether it refuses a container more than one share; never where nothing is shared."""
        if resource.strategy == "none" or (resource.strategy == MIG and resource.replicas == 1):
            return False
        version = plugin_version(topology.allocator.plugin_version)
        if resource.strategy == "mps" and version is not None and version < REFUSES_SEVERAL_SINCE:
            return True
        return resource.refuses_several


@dataclass(frozen=True, slots=True)
class Outage(Allocator):
    """The allocator of a node with missing GPUs, whole ones."""

    names: tuple[str, ...]  # of the missing GPUs
    lost: bool  # whether the driver counts one of them
    gone: Mask  # those that it does not count
    certain: bool  # whether this plugin is known to fail over them
    version: str  # the plugin's, as the record has it; empty where it is unknown

    name = "outage"
    broken = True

    @property
    def hazards(self) -> Mapping[str, str]:  # type: ignore[override]
        """The one refusal; of many GPUs it names the first, so that the sentence stays short."""
        plugin = " ".join(filter(None, ("NVIDIA's device plugin", self.version.removeprefix("v"))))
        first, more = self.names[0], len(self.names) - 1
        some = f"{first} and {more} more do" if more else f"{first} does"
        return {MISSING: f"{plugin} refuses every pod for whole GPUs while {some} not answer"}

    def outcomes(self, call: Call) -> Outcomes:
        """Nothing where the plugin surely fails, else every choice: one that fails over nothing."""
        fails = self.lost or bool(call.available & self.gone)
        if fails and self.certain:
            return Outcomes((), hazards=(MISSING,))
        return every_choice(call, exact=False, hazards=(MISSING,))

    def told(self, config: AllocatorConfig, *, whole: bool) -> Allocator:
        """It may fail or not if nobody knows which GPUs it is asked about."""
        return replace(self, certain=False) if config.aligned_anyhow else self


def outage(topology: NodeTopology, missing: tuple[MissingGpu, ...]) -> Outage:
    """The outage that these missing GPUs make."""
    at, version = topology.position_of_uuid, topology.allocator.plugin_version
    numbers = plugin_version(version)
    return Outage(
        tuple(gpu.name for gpu in missing),
        any(gpu.counted for gpu in missing),
        sum(1 << at[GpuUuid(gpu.name)] for gpu in missing if not gpu.counted and gpu.name in at),
        numbers is not None and FAILS_SINCE <= numbers <= FAILS_UP_TO,
        version or "",
    )
