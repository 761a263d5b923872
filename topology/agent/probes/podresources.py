"""The kubelet's PodResources API over its unix socket: the pods' devices, and the allocatable ones.

The kubelet answers 100 calls a second, in bursts of 10. Beyond that it answers ResourceExhausted.
This is no failure, and the agent asks again later. The kubelet restarts now and then, with another
socket.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc

from topology.agent.model.exclusive import Allocatable, block_order
from topology.agent.model.podentries import GPU_DRIVER, Entry, Held
from topology.agent.model.recordlimits import GPU_IDS, GPU_RESOURCES
from topology.agent.probes.proto.podresources_pb2 import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    ContainerDevices,
    ContainerMemory,
    ContainerResources,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)
from topology.agent.probes.proto.podresources_pb2 import PodResources as ListedPod
from topology.core.devices import DeviceId
from topology.core.mig import MIG_IDS
from topology.core.numa import MOST_CPUS, CpuSet, MemoryBlock

SERVICE = "/v1.PodResourcesLister"
MIG_RESOURCES = "nvidia.com/mig-"
TIMEOUT = 5.0  # seconds for one answer
LARGEST_ANSWER = 16 * 1024 * 1024  # bytes, as much as the kubelet sends

Answer = TypeVar("Answer")


class KubeletDownError(Exception):
    """The failure of the kubelet to answer."""


class KubeletBusyError(KubeletDownError):
    """The kubelet's answer that it is busy and has to be asked again later."""


class PodResources:
    """A client of one kubelet's socket, for one thread at a time."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._channel: grpc.Channel | None = None
        self._identity: tuple[int, int] | None = None
        self.restarts = 0  # how often the socket was replaced
        # The NUMA nodes of each device as the plugin reports them to the kubelet, from the last
        # `allocatable`; empty if it reports none.
        self.topology_nodes: Mapping[DeviceId, tuple[int, ...]] = {}
        # The CPUs and the memory that pods may have exclusively, from the last `allocatable`.
        self.exclusive = Allocatable()

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def entries(self) -> list[Entry]:
        """Return every active pod, with the GPU devices, CPUs and memory of its containers.

        Raises :class:`KubeletDownError`.
        """
        answer: ListPodResourcesResponse = self._call(
            "List", ListPodResourcesRequest(), ListPodResourcesResponse.FromString
        )
        found = [_entry(pod) for pod in answer.pod_resources]
        # The kubelet lists the pods in another order each time.
        return sorted(found, key=lambda e: (*e.key, tuple(map(repr, e.held)), e.cpus))

    def allocatable(self) -> dict[str, frozenset[DeviceId]]:
        """Return the GPU devices that the kubelet hands out from, by resource, held ones included.

        Raises :class:`KubeletDownError`.
        """
        answer: AllocatableResourcesResponse = self._call(
            "GetAllocatableResources",
            AllocatableResourcesRequest(),
            AllocatableResourcesResponse.FromString,
        )
        nodes: defaultdict[DeviceId, set[int]] = defaultdict(set)
        for part in answer.devices:  # a kubelet may name a device once for each of its nodes
            for device in part.device_ids:
                nodes[DeviceId(device)].update(node.ID for node in part.topology.nodes)
        self.topology_nodes = {device: tuple(sorted(found)) for device, found in nodes.items()}
        memory: defaultdict[tuple[int, str], int] = defaultdict(int)
        for amount in answer.memory:  # each with the one node that has it
            for number in _nodes(amount):
                memory[number, amount.memory_type] += amount.size
        self.exclusive = Allocatable(_cpus(answer.cpu_ids), dict(memory))
        return {name: frozenset(ids) for name, ids in _by_resource(answer.devices).items()}

    def _call(self, method: str, request: Any, decode: Callable[[bytes], Answer]) -> Answer:
        ask: Callable[..., Answer] = self._connect().unary_unary(
            f"{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=decode,
        )
        try:
            return ask(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise KubeletBusyError(f"{method}: {code.name}") from error
            self.close()
            details = " ".join((error.details() or "").split())
            raise KubeletDownError(f"{method}: {code.name}: {details}"[:300]) from error

    def _connect(self) -> grpc.Channel:
        try:
            found = self.socket.stat()
        except OSError as error:
            self.close()
            raise KubeletDownError(f"{self.socket}: {error.strerror}") from error
        identity = (found.st_ino, found.st_ctime_ns)
        if identity != self._identity:
            if self._identity is not None:
                self.restarts += 1
            self._identity = identity
            self.close()
        if self._channel is None:
            try:
                self._channel = grpc.insecure_channel(
                    f"unix:{self.socket}",
                    options=[
                        ("grpc.max_receive_message_length", LARGEST_ANSWER),
                        ("grpc.initial_reconnect_backoff_ms", 100),
                        ("grpc.max_reconnect_backoff_ms", 1000),
                        ("grpc.enable_http_proxy", 0),
                        # Otherwise a new channel takes over the connection to the former kubelet.
                        ("grpc.use_local_subchannel_pool", 1),
                    ],
                )
            except ValueError as error:  # the path is no text, say
                raise KubeletDownError(f"the kubelet's socket: {error}") from error
        return self._channel


def _entry(pod: ListedPod) -> Entry:
    blocks = (
        MemoryBlock(part.memory_type, part.size, _nodes(part))
        for container in pod.containers
        for part in container.memory
    )
    return Entry(
        pod.namespace,
        pod.name,
        tuple(held for container in pod.containers for held in _held(container)),
        _cpus(cpu for container in pod.containers for cpu in container.cpu_ids),
        tuple(sorted(blocks, key=block_order)),
    )


def _cpus(numbers: Iterable[int]) -> CpuSet:
    """Return the CPUs, without those whose number is too high for a record."""
    return CpuSet(sum(1 << number for number in set(numbers) if 0 <= number < MOST_CPUS))


def _nodes(part: ContainerMemory) -> tuple[int, ...]:
    return tuple(sorted({node.ID for node in part.topology.nodes}))


def _held(container: ContainerResources) -> list[Held]:
    found = [
        Held(container.name, resource, tuple(sorted(ids)))
        for resource, ids in sorted(_by_resource(container.devices).items())
    ]
    claimed = [
        DeviceId(f"{part.pool_name}/{part.device_name}")
        for claim in container.dynamic_resources
        for part in claim.claim_resources
        if part.driver_name == GPU_DRIVER
    ]
    if claimed:
        found.append(Held(container.name, GPU_DRIVER, tuple(sorted(claimed))))
    return found


def _by_resource(devices: Iterable[ContainerDevices]) -> dict[str, set[DeviceId]]:
    """Return the ids of GPUs by resource. A resource may have many entries, and may not be of GPUs.

    A resource is one of GPUs if its name says so, or if one of its ids names a GPU. Then all its
    ids count, because a plugin that numbers its devices (``nvidia0``) hands out GPUs as well.
    """
    found: defaultdict[str, set[DeviceId]] = defaultdict(set)
    for part in devices:
        for device in part.device_ids:
            found[part.resource_name].add(DeviceId(device))
    return {
        name: ids
        for name, ids in found.items()
        if name in GPU_RESOURCES
        or name.startswith(MIG_RESOURCES)
        or any(device.startswith((GPU_IDS, MIG_IDS)) for device in ids)
    }
