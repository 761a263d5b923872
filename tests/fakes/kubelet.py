"""A kubelet's PodResources API: a real gRPC server on a real unix socket, and nothing behind it."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from topology.agent.probes.podresources import SERVICE
from topology.agent.probes.proto.podresources_pb2 import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    ClaimResource,
    ContainerDevices,
    ContainerMemory,
    ContainerResources,
    DynamicResource,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    NUMANode,
    PodResources,
    TopologyInfo,
)

GPU = "nvidia.com/gpu"
Containers = Mapping[str, Mapping[str, list[str]]]  # Device ids by container and resource
Block = tuple[str, int, Sequence[int]]  # Memory: type, bytes, NUMA nodes


class FakeKubelet:
    """Lists the pods it is given, each device as an entry of its own, as the kubelet does.

    ``folder`` holds the socket and must have a short path. ``calls`` counts by method.
    """

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "kubelet.sock"
        self.calls = {"List": 0, "GetAllocatableResources": 0}
        self._lock = threading.Lock()
        self._pods: list[PodResources] = []
        self._allocatable: dict[str, list[str]] = {}
        # The NUMA nodes of each device, as the plugin names them.
        self.numa: Mapping[str, Sequence[int]] = {}
        self.cpus: Sequence[int] = ()
        # What it gives to pods for their own; nothing without static managers.
        self.memory: Sequence[Block] = ()
        self._busy = 0
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, on a fresh socket."""
        self.socket.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(2))
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "List": grpc.unary_unary_rpc_method_handler(
                self._list, ListPodResourcesRequest.FromString, _bytes
            ),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(
                self._allocatable_resources, AllocatableResourcesRequest.FromString, _bytes
            ),
        }
        service = grpc.method_handlers_generic_handler(SERVICE.removeprefix("/"), handlers)
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(f"unix:{self.socket}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """Go away, the socket too."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        self.socket.unlink(missing_ok=True)

    def allocatable(self, *ids: str, resource: str = GPU) -> None:
        """What it hands out from now on."""
        with self._lock:
            self._allocatable[resource] = list(ids)

    def show(
        self,
        namespace: str,
        name: str,
        containers: Containers,
        claims: Mapping[str, str] = {},
        cpus: Mapping[str, Sequence[int]] = {},
        memory: Mapping[str, Sequence[Block]] = {},
    ) -> None:
        """Show a pod, beside others of its name.

        ``claims`` are DRA devices by container, ``cpus`` and ``memory`` what each has for its own.
        """
        pod = PodResources(name=name, namespace=namespace)
        for container, resources in containers.items():
            shown = ContainerResources(
                name=container,
                cpu_ids=cpus.get(container, ()),
                memory=map(_memory, memory.get(container, ())),
            )
            for resource, ids in resources.items():
                for device in ids:
                    shown.devices.append(
                        ContainerDevices(resource_name=resource, device_ids=[device])
                    )
            if device_name := claims.get(container):
                part = ClaimResource(
                    driver_name="gpu.nvidia.com", pool_name="n", device_name=device_name
                )
                shown.dynamic_resources.append(
                    DynamicResource(claim_name="c", claim_resources=[part])
                )
            pod.containers.append(shown)
        with self._lock:
            self._pods.append(pod)

    def hide(self, name: str) -> None:
        """Show the first pod of that name no longer."""
        with self._lock:
            first = next(i for i, pod in enumerate(self._pods) if pod.name == name)
            del self._pods[first]

    def forget(self) -> list[PodResources]:
        """List no pod; returns the pods listed before, for :meth:`recall`."""
        with self._lock:
            found, self._pods = self._pods, []
        return found

    def recall(self, pods: list[PodResources]) -> None:
        """Show them again."""
        with self._lock:
            self._pods = pods

    def exhaust(self, times: int) -> None:
        """Answer the next calls with ResourceExhausted."""
        with self._lock:
            self._busy = times

    def _list(self, request: Any, context: grpc.ServicerContext) -> ListPodResourcesResponse:
        self._count("List", context)
        with self._lock:
            return ListPodResourcesResponse(pod_resources=self._pods)

    def _allocatable_resources(
        self, request: Any, context: grpc.ServicerContext
    ) -> AllocatableResourcesResponse:
        self._count("GetAllocatableResources", context)
        with self._lock:
            devices = [
                ContainerDevices(
                    resource_name=resource,
                    device_ids=[device],
                    topology=TopologyInfo(
                        nodes=[NUMANode(ID=n) for n in self.numa.get(device, ())]
                    ),
                )
                for resource, ids in self._allocatable.items()
                for device in ids
            ]
            return AllocatableResourcesResponse(
                devices=devices, cpu_ids=self.cpus, memory=map(_memory, self.memory)
            )

    def _count(self, method: str, context: grpc.ServicerContext) -> None:
        with self._lock:
            self.calls[method] += 1
            busy = self._busy > 0
            self._busy -= busy
        if busy:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")


def _memory(block: Block) -> ContainerMemory:
    kind, size, nodes = block
    where = TopologyInfo(nodes=[NUMANode(ID=n) for n in nodes])
    return ContainerMemory(memory_type=kind, size=size, topology=where)


def _bytes(message: Any) -> bytes:
    return message.SerializeToString()  # type: ignore[no-any-return]
