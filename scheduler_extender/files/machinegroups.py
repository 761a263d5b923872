"""Read the kind ``MachineGroup`` of a cluster file.

It is a number of equal nodes of a machine of the catalogue.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from scheduler_extender.quantities import quantity
from topology.codec import Record, decode, encode, first_error
from topology.codec.wire import Allocator
from topology.core.devices import GpuResource, NodeName
from topology.core.graph import AllocatorConfig, NodeTopology, TopologyError
from topology.core.report import Report
from topology.machines import UnknownMachine, machine
from topology.machines.mig import cut
from topology.machines.notation import STOCK

# The most GPUs of all MachineGroups of a file together; one line can ask for any number.
MAX_GROUPED = 200_000
# The amounts that stand for no limit; larger ones are refused.
MOST = (("cpu", 10**9), ("memory", 10**18), ("pods", 10**6))


@dataclass(frozen=True, slots=True)
class Allocatable:
    """The amounts that pods can have of a node.

    CPU is in milli, memory in bytes; ``pods`` is a number of pods.
    """

    cpu: int
    memory: int
    pods: int = 110


def allocatable_of(amounts: Mapping[str, str | int]) -> Allocatable:
    """Read quantities. An absent amount is no limit. Raises :class:`ValueError`."""
    read: dict[str, Decimal | int] = {}
    for name, most in MOST:
        try:
            read[name] = quantity(str(amounts[name])) if name in amounts else most
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if not 0 <= read[name] <= most:
            raise ValueError(f"{name}: {amounts[name]} is not between 0 and {most}")
    return Allocatable(int(read["cpu"] * 1000), int(read["memory"]), int(read["pods"]))


class _Mig(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)
    profiles: Annotated[list[Annotated[str, Field(max_length=32)]], Field(min_length=1)]
    strategy: Literal["single", "mixed"] = "mixed"
    gpus: list[int] | None = None


class _Sharing(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)
    strategy: Literal["time-slicing", "mps"] = "time-slicing"
    replicas: Annotated[int, Field(ge=2, le=128)]
    resource: Literal["nvidia.com/gpu", "nvidia.com/gpu.shared"] = "nvidia.com/gpu"
    policy: Literal["distributed", "packed"] = "distributed"
    fail_requests_greater_than_one: bool | None = None

    def of(self, node: NodeTopology) -> NodeTopology:
        """Return the node with its GPUs shared in this way."""
        refuses = self.fail_requests_greater_than_one
        served = GpuResource(self.resource, self.strategy, self.replicas, refuses)
        config = replace(node.allocator, policy=self.policy)
        return replace(node, resources=(served,), allocator=config)


class MachineGroup(BaseModel):
    """A number of equal nodes, as the file describes them."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)
    kind: Literal["MachineGroup"]
    api_version: Literal["gpu-topology.io/v1alpha1"] = "gpu-topology.io/v1alpha1"
    machine: str
    count: Annotated[int, Field(ge=1, le=100_000)]
    name_prefix: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*)$", max_length=240)]
    cpu: Annotated[str | int, Field(union_mode="left_to_right")] | None = None
    memory: Annotated[str | int, Field(union_mode="left_to_right")] | None = None
    allocator: Allocator | None = None
    mig: _Mig | None = None
    sharing: _Sharing | None = None

    @property
    def gpus(self) -> int:
        """The number of GPUs of all nodes."""
        return self.count * machine(self.machine).size

    @property
    def names(self) -> list[NodeName]:
        """The names of the nodes."""
        width = max(2, len(str(self.count - 1)))
        return [NodeName(f"{self.name_prefix}{i:0{width}}") for i in range(self.count)]

    @property
    def amounts(self) -> dict[str, str | int]:
        """The written quantities of CPU and memory."""
        given = {"cpu": self.cpu, "memory": self.memory}
        return {name: amount for name, amount in given.items() if amount is not None}

    @property
    def kubelet(self) -> AllocatorConfig:
        """How kubelet and device plugin allocate devices: read as from a written record.

        Raises :class:`ValueError`.
        """
        if self.allocator is None:
            return STOCK
        kind, amounts = machine(self.machine), allocatable_of(self.amounts)
        stock = kind.kubelet(amounts.cpu // 1000, amounts.memory)
        record: dict[str, Any] = encode(kind.topology("node", allocator=stock))
        given = self.allocator.model_dump(by_alias=True, exclude_unset=True)
        record["spec"]["allocator"] |= given
        return replace(decode(record).topology.allocator, sees_topology=True)

    def records(self) -> Iterator[Record]:
        """Yield the nodes, made one by one. Raises :class:`ValueError`."""
        kind, mig, kubelet = machine(self.machine), self.mig, self.kubelet
        report = Report(holdings=None if kubelet.numa is None else ())
        for name in self.names:
            node = kind.topology(name, allocator=kubelet, group=self.name_prefix)
            if self.sharing is not None:
                node = self.sharing.of(node)
            elif mig is not None:
                node = cut(node, mig.profiles, strategy=mig.strategy, gpus=mig.gpus)
            yield Record(node, report)


def read_group(item: Mapping[str, Any], room: int) -> MachineGroup:
    """Read a group within the limits; ``room`` is the number of GPUs that are still allowed.

    Raises :class:`ValueError`.
    """
    try:
        group = MachineGroup.model_validate(item, extra="forbid")
    except ValidationError as error:
        raise ValueError(first_error(error)) from error
    try:
        size = machine(group.machine).size
    except UnknownMachine as error:
        raise ValueError(f"machine: {error}") from error
    if group.gpus > room:
        raise ValueError(
            f"count: {group.count:,} × {size} GPUs are too many; all MachineGroups together may "
            f"have at most {MAX_GROUPED:,} GPUs"
        )
    if group.mig and group.sharing:
        raise ValueError("only one of mig and sharing is allowed")
    try:
        next(group.records())
    except TopologyError as error:
        raise ValueError(str(error)) from error
    return group
