"""A client of the kubelet's PodResources API: which containers hold which devices."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

import grpc

from tests.waiting import PATIENCE
from topology.agent.probes.proto.podresources_pb2 import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    ContainerDevices,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)

# Device ids by pod (namespace, name) and container, in the order of the pod's containers. A
# container without devices is there with none; a pod that asks for none is there too.
Holdings = dict[tuple[str, str], dict[str, tuple[str, ...]]]

Answer = TypeVar("Answer")
SERVICE = "/v1.PodResourcesLister"
FIRST_BACKOFF = 0.1
PREFIX = "nvidia.com/"  # of every resource that NVIDIA's plugin serves


class PodResources:
    """One kubelet's PodResources, over its unix socket."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        self._list = self._channel.unary_unary(
            f"{SERVICE}/List",
            request_serializer=ListPodResourcesRequest.SerializeToString,
            response_deserializer=ListPodResourcesResponse.FromString,
        )
        self._allocatable = self._channel.unary_unary(
            f"{SERVICE}/GetAllocatableResources",
            request_serializer=AllocatableResourcesRequest.SerializeToString,
            response_deserializer=AllocatableResourcesResponse.FromString,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def holdings(self) -> Holdings:
        """What every pod that the kubelet calls active holds. Raises :class:`grpc.RpcError`."""
        found: ListPodResourcesResponse = _patiently(
            lambda: self._list(ListPodResourcesRequest(), timeout=PATIENCE)
        )
        return {
            (pod.namespace, pod.name): {c.name: _ids(*c.devices) for c in pod.containers}
            for pod in found.pod_resources
        }

    def claims(self) -> Holdings:
        """As :meth:`holdings`, the devices of claims by name, in the order of the claims' results.

        A device that a container has of several claims is there as often.
        """
        found: ListPodResourcesResponse = _patiently(
            lambda: self._list(ListPodResourcesRequest(), timeout=PATIENCE)
        )
        return {
            (pod.namespace, pod.name): {
                container.name: tuple(
                    given.device_name
                    for claim in container.dynamic_resources
                    for given in claim.claim_resources
                )
                for container in pod.containers
            }
            for pod in found.pod_resources
        }

    def allocatable(self) -> dict[str, frozenset[str]]:
        """The devices that the kubelet hands out from by resource, held ones included.

        A resource without any may be there or not.
        """
        found: AllocatableResourcesResponse = _patiently(
            lambda: self._allocatable(AllocatableResourcesRequest(), timeout=PATIENCE)
        )
        names = {d.resource_name for d in found.devices if d.resource_name.startswith(PREFIX)}
        return {
            name: frozenset(_ids(*(d for d in found.devices if d.resource_name == name)))
            for name in names
        }


def _ids(*devices: ContainerDevices) -> tuple[str, ...]:
    return tuple(i for d in devices if d.resource_name.startswith(PREFIX) for i in d.device_ids)


def _patiently(ask: Callable[[], Answer], within: float = PATIENCE) -> Answer:
    """The answer, asked for again ever more slowly while the kubelet says that it is too much."""
    deadline = time.monotonic() + within
    backoff = FIRST_BACKOFF
    while True:
        try:
            return ask()
        except grpc.RpcError as error:
            exhausted = error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            if not exhausted or time.monotonic() + backoff > deadline:
                raise
        time.sleep(backoff)
        backoff *= 2
