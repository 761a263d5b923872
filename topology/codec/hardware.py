"""A cache of decoded hardware, which decodes specs that differ only in names once.

A cluster has a few kinds of machines and thousands of nodes. The specs of two nodes of one kind are
the same text except for the UUIDs of their GPUs. So the hardware of the second node is that of the
first under other names.
"""

import re
from dataclasses import dataclass

from topology.core.devices import GpuUuid, NodeName
from topology.core.graph import NodeTopology
from topology.core.memo import Memo

# This matches the JSON that an API server writes. In JSON with other spacing it finds no UUIDs.
_uuid = re.compile(rb'"uuid":"([!#-\[\]-~]{1,253})"')
DECODED = 8  # a topology takes at most about this many bytes for each byte of its spec
LONGEST = 64 * 1024  # bytes of the largest spec that is cached; one with 16 GPUs has about 15,000


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of machine."""

    first: NodeTopology  # its first node
    positions: tuple[int, ...]  # the position of each GPU, in the order of the text
    shared_bytes: int  # its approximate bytes


class KnownHardware:
    """The cache of decoded specs, by their text without UUIDs.

    Only one thread may use it at a time.
    """

    def __init__(self) -> None:
        self._kinds = Memo[bytes, _Kind]()

    def topology(self, name: str, spec: bytes) -> NodeTopology | None:
        """Return the topology of a node with this spec as JSON.

        The result is None if no node of its kind is cached, or if the spec is unusual (too long,
        without UUIDs, or a UUID twice). The caller then decodes the spec.
        """
        if not 1 <= len(name) <= 253 or len(spec) > LONGEST:
            return None
        uuids = [GpuUuid(found.decode("ascii")) for found in _uuid.findall(spec)]
        kind = self._kinds.get(_nameless(spec)) if uuids else None
        if kind is None or len(set(uuids)) < len(uuids):
            return None
        by_position = dict(zip(kind.positions, uuids, strict=True))
        return kind.first.renamed(NodeName(name), [by_position[p] for p in range(len(uuids))])

    def keep(self, spec: bytes, topology: NodeTopology) -> None:
        """Cache the decoded hardware of a spec, unless it is too long or has MIG instances."""
        if len(spec) > LONGEST or any(gpu.mig_instances for gpu in topology.gpus):
            return
        at = {gpu.uuid.encode(): position for position, gpu in enumerate(topology.gpus)}
        uuids = _uuid.findall(spec)
        if len(uuids) == len(at) and at.keys() == set(uuids):
            kind = _Kind(topology, tuple(at[uuid] for uuid in uuids), DECODED * len(spec))
            self._kinds.put(_nameless(spec), kind)


def _nameless(spec: bytes) -> bytes:
    """Return the spec without its UUIDs. The result is not JSON, so it equals no complete spec."""
    return _uuid.sub(b'"uuid"', spec)
