"""NVIDIA's plugin over whole GPUs while one of the node's GPUs does not answer the driver.

Asked which whole GPUs it prefers, the plugin first looks at every GPU that the driver counts, and
then up those it may choose from. Both fail over a GPU that is missing:

* one that the driver still counts, as after Xid 79 (*lost*), fails the first step, whichever GPUs
  are asked about;
* one that the driver does not count any more (*gone*) fails the second, where it is among them. A
  plugin that opened the driver earlier still counts it and fails at once.

The plugin then answers with an error, and the kubelet refuses the pod (UnexpectedAdmissionError).
Shared GPUs and MIG devices are chosen without a look at the driver. How many devices a container
wants makes no difference, but the kubelet does not ask where it has no choice: a container that
devices of init containers cover, or one that gets all free devices of its NUMA nodes.

Sources: k8s-device-plugin 0.17.4 to 0.19.3 (``alignedAlloc``) and go-gpuallocator 0.5 and 0.6
(``NewDevices``, ``Filter``), read and run; issues 231 (0.7) and 2038 (0.18.1) of the plugin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from topology.core.allocators.outcomes import Call, Outcomes, every_choice
from topology.core.devices import GpuUuid, Mask
from topology.core.graph import NodeTopology
from topology.core.report import MissingGpu

MISSING = "missing-gpu"
"""The plugin may fail over a GPU that does not answer (UnexpectedAdmissionError)."""
FAILS_SINCE, FAILS_UP_TO = (0, 7), (0, 20, 0)
"""The versions that fail: the first that prefers anything, and the newest that we know of. A change
that mends it (k8s-device-plugin's pull request 2039) was open when this was written: later versions
may fail or may hand out any GPUs."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The allocator of a node with missing GPUs, whole ones.

    ``names`` are the missing GPUs. ``lost`` says that the driver counts one of them, ``gone`` are
    those that it does not. ``certain`` says that this plugin is known to fail over them.
    """

    names: tuple[str, ...]
    lost: bool
    gone: Mask
    certain: bool

    name = "outage"
    monotone = False

    def outcomes(self, call: Call) -> Outcomes:
        """Nothing where the plugin surely fails, else every choice: one that fails over nothing."""
        fails = self.lost or bool(call.available & self.gone)
        if fails and self.certain:
            return Outcomes((), hazards=(MISSING,))
        return every_choice(call, exact=False, hazards=(MISSING,))


def outage(
    topology: NodeTopology, missing: Iterable[MissingGpu], version: tuple[int, ...] | None
) -> Outage | None:
    """The outage that these missing GPUs make, None where there are none.

    ``version`` is that of NVIDIA's plugin; None where it is unknown, or the plugin another one.
    """
    gone = list(missing)
    if not gone:
        return None
    at = topology.position_of_uuid
    return Outage(
        tuple(gpu.name for gpu in gone),
        any(gpu.counted for gpu in gone),
        sum(1 << at[GpuUuid(gpu.name)] for gpu in gone if not gpu.counted and gpu.name in at),
        version is not None and FAILS_SINCE <= version <= FAILS_UP_TO,
    )
