"""Replicas of the whole service in this process, over one fake API server."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from scheduler_extender.kube.bindable import OwnPod
from scheduler_extender.leader.address import Address
from scheduler_extender.leader.leader import Leader, Replication, boot_clock
from scheduler_extender.serving import in_thread, replica_service
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import switched
from tests.scheduler_extender.serving import UNHURRIED
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.codec import encode
from topology.core.devices import DeviceId
from topology.core.report import Report
from topology.kubeapi.apiserver import ApiServer

NAMESPACE = "gpu-topology-system"
PODS = "/api/v1/namespaces"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpu-topology"
SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/gpu-topology-leader-ipv4"
NODE = switched()
NAME = str(NODE.name)
RENEWED_EVERY = 0.4  # seconds between two renewals: so often as for a Lease of two seconds
STANDS_BACK = 4.0  # seconds for which a replica that could not take over leaves it to the others
LEADER = "scheduler_extender.leader.leader"


@dataclass
class Replica:
    """One replica that runs."""

    name: str
    leader: Leader
    api: ApiServer
    cluster: Cache
    http: httpx.Client

    def post(self, verb: str, body: Any) -> httpx.Response:
        return self.http.post(f"/scheduler/{verb}", json=body)

    def passes(self, pod: dict[str, Any]) -> bool:
        """Whether filter lets the pod onto the node."""
        answer = self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": [NAME]})
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["NodeNames"])

    def bind(self, pod: dict[str, Any]) -> str:
        meta = pod["metadata"]
        body = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": NAME,
        }
        answer = self.post("bind", body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["Error"])

    def leads(self) -> bool:
        return self.leader.leads()

    def holds(self) -> bool:
        """Whether the Lease names it, if perhaps it does not lead yet."""
        return self.leader._election.holds

    def cut_off(self) -> None:
        """From now on it reaches the API server no more: as good as dead, but for what it sent."""
        self.api.close()


class World:
    """A fake API server with one node of four GPUs, and replicas that come and go.

    Their Leases last for longer than any test: on a slow machine a Lease of two seconds would run
    out while its holder is well. Where a test is about its end, :meth:`succeeds` moves the clock.
    """

    def __init__(self, fake: FakeApiServer, folder: Path, stack: ExitStack) -> None:
        self.fake = fake
        self._ahead = 0.0
        self._kubeconfig = fake.write_kubeconfig(folder / "kubeconfig")
        self._stack = stack
        allocatable = {"nvidia.com/gpu": "4"}
        self.fake.put(
            f"/api/v1/nodes/{NAME}",
            {"metadata": {"name": NAME}, "status": {"allocatable": allocatable}},
        )
        uuids = frozenset(DeviceId(gpu.uuid) for gpu in NODE.gpus)
        record = encode(NODE, Report("boot", 1, allocatable=uuids))
        self.fake.put(f"/apis/gpu-topology.io/v1alpha1/gputopologies/{NAME}", plain(record))

    def replica(self, name: str) -> Replica:
        """Start a replica and wait until it has read everything."""
        self.fake.put(
            f"{PODS}/{NAMESPACE}/pods/{name}",
            {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"containers": []}},
        )
        api = ApiServer.from_kubeconfig(self._kubeconfig)
        own = OwnPod(NAMESPACE, name)
        address = Address(f"10.0.0.{len(name)}", 8888, "gpu-topology")
        replication = Replication(own, seconds=FOREVER, address=address)
        found = self._stack.enter_context(_running(name, api, replication))
        found.leader._clock = self.clock
        eventually(lambda: found.http.get("/readyz").status_code == 200, "it is ready")
        return found

    def clock(self) -> float:
        """The seconds by which Leases run out."""
        return boot_clock() + self._ahead

    def succeeds(self, heir: Replica) -> None:
        """Wait until the heir leads, since the Lease that it has seen has run out.

        The former leader renews it no more, but for what is on its way: after that it runs out
        once more.
        """
        ran_out = ""

        def leads() -> bool:
            nonlocal ran_out
            version, seen = self.lease()["metadata"]["resourceVersion"], heir.leader._election.lease
            if seen is not None and seen.version == version != ran_out and not heir.holds():
                self._ahead += 2 * FOREVER
                ran_out = version
            return heir.leads()

        eventually(leads, f"{heir.name} leads")

    def create(self, pod: dict[str, Any]) -> dict[str, Any]:
        meta = pod["metadata"]
        return self.fake.put(f"{PODS}/{meta['namespace']}/pods/{meta['name']}", pod)

    def node_of(self, pod: dict[str, Any]) -> str | None:
        meta = pod["metadata"]
        found = self.fake.read(f"{PODS}/{meta['namespace']}/pods/{meta['name']}")
        return found["spec"].get("nodeName")  # type: ignore[no-any-return]

    def lease(self) -> dict[str, Any]:
        return self.fake.read(LEASE)


@contextmanager
def world(folder: Path) -> Iterator[World]:
    with (
        patch(f"{LEADER}.RENEWALS", FOREVER / RENEWED_EVERY),
        patch(f"{LEADER}.STANDS_BACK", STANDS_BACK / FOREVER),
        FakeApiServer() as fake,
        ExitStack() as stack,
    ):
        yield World(fake, folder, stack)
        fake.allow()


@contextmanager
def _running(name: str, api: ApiServer, replication: Replication) -> Iterator[Replica]:
    with (
        replica_service(api, Settings(), replication) as (service, leader),
        in_thread(service, limits=UNHURRIED) as serving,
    ):
        leader.on_lost.append(serving.close_idle)
        base = f"http://127.0.0.1:{serving.ports[0]}"
        with httpx.Client(base_url=base, timeout=PATIENCE, verify=False, trust_env=False) as client:
            yield Replica(name, leader, api, service.cluster, client)


def plain(found: object) -> dict[str, Any]:
    """An encoded object as JSON would bring it."""
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]
