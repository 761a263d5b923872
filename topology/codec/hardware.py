"""Specs that differ only in names are decoded once.

A cluster has a few kinds of machines and thousands of nodes. The specs of two nodes of a kind are
the same text apart from the UUIDs of their GPUs. So the decoded hardware of the first is that of
the second, under other names.
"""

import re
from dataclasses import dataclass

from topology.core.devices import GpuUuid, NodeName
from topology.core.graph import NodeTopology
from topology.core.memo import Memo

# As an API server writes it. In a text that is written in another way it finds nothing.
_uuid = re.compile(rb'"uuid":"([!#-\[\]-~]{1,253})"')
DECODED = 8  # a topology takes at most about this many bytes for each byte of its spec
LONGEST = 64 * 1024  # bytes of a spec that is remembered; one with 16 GPUs has about 15,000


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of machines."""

    first: NodeTopology  # its first node
    positions: tuple[int, ...]  # the position of each GPU, in the order of the text
    shared_bytes: int  # about how many bytes it takes


class KnownHardware:
    """The specs that were decoded lately, without their names. One thread at a time."""

    def __init__(self) -> None:
        self._kinds = Memo[bytes, _Kind]()

    def topology(self, name: str, spec: bytes) -> NodeTopology | None:
        """The topology of a node with this spec as JSON.

        None if no node of its kind is known, or anything about it is odd: then decode it.
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
        """Remember the decoded hardware of a spec."""
        if len(spec) > LONGEST or any(gpu.mig_instances for gpu in topology.gpus):
            return
        at = {gpu.uuid.encode(): position for position, gpu in enumerate(topology.gpus)}
        uuids = _uuid.findall(spec)
        if len(uuids) == len(at) and at.keys() == set(uuids):
            kind = _Kind(topology, tuple(at[uuid] for uuid in uuids), DECODED * len(spec))
            self._kinds.put(_nameless(spec), kind)


def _nameless(spec: bytes) -> bytes:
    """The spec without its UUIDs. It is not JSON any more, so it equals no other spec."""
    return _uuid.sub(b'"uuid"', spec)
