"""Plays the node agent until there is one: publishes what the kubelets' PodResources show."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import grpc
import httpx

from tests.e2e.cluster import RECORDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelet import Kubelet
from tests.e2e.podresources import Holdings
from topology import codec
from topology.devices import DeviceId, PodUid
from topology.report import Allocation, Report

PERIOD = 0.2
HEARTBEAT = 60.0
MERGE = {"Content-Type": "application/merge-patch+json"}


class StandInAgent:
    """A GPUTopology per kubelet, created on entry, its status kept true until exit.

    Each node has a boot id of its own and a sequence that every write raises. ``seen`` remembers
    what each pod held last: device ids by container, by (node, pod name). A node whose last round
    failed when the context ends fails the test.
    """

    def __init__(self, control_plane: ControlPlane, kubelets: Mapping[str, Kubelet]) -> None:
        self._kubelets = dict(kubelets)
        self._client = control_plane.client()
        self._boot = {name: secrets.token_hex(8) for name in kubelets}
        self._sequence = dict.fromkeys(kubelets, 0)
        self._last: dict[str, tuple[float, Report]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stand-in agent", daemon=True)
        self._failures: dict[str, Exception] = {}
        self.seen: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}

    def __enter__(self) -> Self:
        for kubelet in self._kubelets.values():
            self._client.post(RECORDS, json=codec.encode(kubelet.topology)).raise_for_status()
            self.publish(kubelet)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()
        if self._failures and error is None:
            raise next(iter(self._failures.values()))

    def publish(self, kubelet: Kubelet) -> None:
        """Write a node's report where it changed or is due again."""
        name = kubelet.name
        found = self._report(kubelet)
        before = self._last.get(name)
        now = time.monotonic()
        if before is not None and before[1] == found and now - before[0] < HEARTBEAT:
            return
        self._sequence[name] += 1
        sent = Report(self._boot[name], self._sequence[name], found.allocatable, found.allocations)
        answer = self._client.patch(
            f"{RECORDS}/{name}/status", json={"status": codec.encode_report(sent)}, headers=MERGE
        )
        answer.raise_for_status()
        self._last[name] = (now, found)

    def _report(self, kubelet: Kubelet) -> Report:
        """What the kubelet shows now, without a sequence."""
        holdings = kubelet.pod_resources.holdings()
        allocatable = frozenset(map(DeviceId, kubelet.pod_resources.allocatable()))
        uids = self._uids(kubelet.name)
        self._remember(kubelet.name, holdings)
        allocations = [
            Allocation(
                uids[pod], *pod, container, "nvidia.com/gpu", tuple(map(DeviceId, sorted(ids)))
            )
            for pod, containers in holdings.items()
            if pod in uids
            for container, ids in containers.items()
            if ids
        ]
        return Report(
            allocatable=allocatable,
            allocations=tuple(sorted(allocations, key=lambda a: (a.pod_uid, a.container))),
        )

    def _remember(self, node: str, holdings: Holdings) -> None:
        for (_, pod), containers in holdings.items():
            if any(containers.values()):
                self.seen[node, pod] = containers

    def _uids(self, node: str) -> dict[tuple[str, str], PodUid]:
        """The pods of a node: PodResources names them, reports want their UIDs."""
        query = {"fieldSelector": f"spec.nodeName={node}"}
        answer = self._client.get("/api/v1/pods", params=query).raise_for_status()
        metadata = [pod["metadata"] for pod in answer.json()["items"]]
        return {(m["namespace"], m["name"]): PodUid(m["uid"]) for m in metadata}

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            for name, kubelet in self._kubelets.items():
                try:
                    self.publish(kubelet)
                    self._failures.pop(name, None)
                except (grpc.RpcError, httpx.HTTPError) as error:
                    self._failures[name] = error  # a kubelet or server may be down for a while
