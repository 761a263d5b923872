"""The device plugin API, v1beta1, from the kubelet's side: asks a plugin on its socket."""

import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from tests.e2e.proto.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateRequest,
    ContainerPreferredAllocationRequest,
    Empty,
    ListAndWatchResponse,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
)

SERVICE = "/v1beta1.DevicePlugin"
REGISTRATION = "/v1beta1.Registration"
HEALTHY = "Healthy"
TIMEOUT = 120.0  # seconds for one answer: an allocator may take long, and so may a busy machine


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its plugin tells the kubelet of it."""

    id: str
    healthy: bool
    numa_nodes: tuple[int, ...]


def channel_to(socket: Path) -> grpc.Channel:
    """A channel to a unix socket that retries quickly while it has no server."""
    options = [
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 200),
        ("grpc.enable_http_proxy", 0),
    ]
    return grpc.insecure_channel(f"unix:{socket}", options=options)


class DevicePlugin:
    """A client of one plugin's socket while the context is open.

    Every question raises :class:`grpc.RpcError` where the plugin answers with an error, dies, or
    is not there.
    """

    def __init__(self, socket: Path) -> None:
        self._channel = channel_to(socket)
        self._lists: list[tuple[Device, ...]] = []
        self._lock = threading.Lock()
        self._stream: Any = None
        self._reader = threading.Thread(target=self._read, name="devices", daemon=True)

    def __enter__(self) -> Self:
        watch = self._channel.unary_stream(
            f"{SERVICE}/ListAndWatch",
            request_serializer=Empty.SerializeToString,
            response_deserializer=ListAndWatchResponse.FromString,
        )
        self._stream = watch(Empty(), wait_for_ready=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.cancel()
        self._reader.join()
        self._channel.close()

    def devices(self) -> tuple[Device, ...]:
        """The plugin's devices by its latest list; none before the first."""
        with self._lock:
            return self._lists[-1] if self._lists else ()

    def preferred(
        self,
        available: Collection[str],
        size: int,
        required: Collection[str] = (),
        timeout: float = TIMEOUT,
    ) -> tuple[str, ...]:
        """GetPreferredAllocation for one container; ``timeout`` is in seconds."""
        asked = ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=required, allocation_size=size
        )
        answer: PreferredAllocationResponse = self._channel.unary_unary(
            f"{SERVICE}/GetPreferredAllocation",
            request_serializer=PreferredAllocationRequest.SerializeToString,
            response_deserializer=PreferredAllocationResponse.FromString,
        )(
            PreferredAllocationRequest(container_requests=[asked]),
            timeout=timeout,
            wait_for_ready=True,
        )
        return tuple(answer.container_responses[0].deviceIDs)

    def allocate(self, ids: Collection[str]) -> dict[str, str]:
        """Allocate for one container: the environment that the plugin gives it."""
        asked = ContainerAllocateRequest(devices_ids=ids)
        answer: AllocateResponse = self._channel.unary_unary(
            f"{SERVICE}/Allocate",
            request_serializer=AllocateRequest.SerializeToString,
            response_deserializer=AllocateResponse.FromString,
        )(AllocateRequest(container_requests=[asked]), timeout=TIMEOUT, wait_for_ready=True)
        return dict(answer.container_responses[0].envs)

    def _read(self) -> None:
        try:
            for answer in self._stream:
                found = tuple(
                    Device(d.ID, d.health == HEALTHY, tuple(n.ID for n in d.topology.nodes))
                    for d in answer.devices
                )
                with self._lock:
                    self._lists.append(found)
        except grpc.RpcError:
            return  # the plugin has died, or the context is closed
