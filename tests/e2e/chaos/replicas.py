"""Two replicas of the extender as processes, and what a cluster has around them.

Each has a pod object, an uplink to the API server of its own, and a port of its own. The Service's
EndpointSlice names a made-up address (the API server takes no loopback one) and that port, and
:class:`.network.ServicePort` goes where it says.
"""

import signal
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import yaml

from tests.chaos.history import Recorder, Written
from tests.e2e.chaos import clocks, sources
from tests.e2e.chaos.network import Network, ServicePort, Uplink
from tests.e2e.cluster import EXTENDER, RealCluster
from tests.e2e.controlplane import Process
from tests.programs import free_port
from tests.waiting import PATIENCE
from topology.kubeapi.apiserver import ApiServer
from topology.kubeapi.reflector import Reflector, Watched

NAMESPACE = "gpu-topology-system"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
# Of every replica's pod: it stands in the EndpointSlice, and the port tells them apart.
POD_ADDRESS = "10.244.0.1"
SHIPPED_LEASE = 10.0  # seconds: the default of `--lease-seconds`
PRODUCT = ("-m", "scheduler_extender")  # the extender as it is


@dataclass(slots=True)
class Replica:
    """One replica: its pod, its ports, its uplink, and the process while there is one.

    ``clock_rate`` is how fast the clock of its next process runs (see :mod:`.clocks`).
    """

    pod: str
    port: int
    admin_port: int
    metrics_port: int
    uplink: Uplink
    process: Process | None = None
    paused: bool = False
    clock_rate: float = 1.0

    @property
    def runs(self) -> bool:
        """Whether there is a process that has not ended."""
        return self.process is not None and self.process.alive()

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self.paused = True
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.paused = False
        self.process.signal(signal.SIGCONT)


class EndpointFollower:
    """Follows the Service's EndpointSlice; its last content counts while no server answers."""

    def __init__(self) -> None:
        self.port = 0  # the port of the address in it; 0 before there is one
        # When (time.monotonic) it changed, and to which port.
        self.changes: list[tuple[float, int]] = []

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        for obj in objects:
            self.apply(obj)

    def apply(self, obj: msgspec.Raw) -> None:
        found = msgspec.json.decode(obj)
        ready = [e for e in found["endpoints"] or () if e["conditions"]["ready"]]
        port = found["ports"][0]["port"] if ready else 0
        if port != self.port:
            self.port = port
            self.changes.append((time.monotonic(), port))

    def delete(self, obj: msgspec.Raw) -> None:
        self.port = 0


class ReplicatedCluster(RealCluster):
    """A cluster with two replicas, of which one leads.

    They are the extender as it is, with the Lease that we ship, up to :meth:`replace_replicas`.
    """

    def __init__(self, folder: Path, binaries: Path, network: Network) -> None:
        super().__init__(folder, binaries)
        self._lease_seconds = SHIPPED_LEASE
        self._program: Sequence[str] = PRODUCT
        self._environment: dict[str, str] = {}
        self.replicas: list[Replica] = []
        self.endpoint = EndpointFollower()
        self.audit = folder / "audit.log"
        self._network = network
        self._sources = 0
        policy = folder / "audit-policy.yaml"
        policy.write_text(sources.AUDITED)
        self.control_plane.apiserver_flags += [
            *sources.FLAGS,
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit}",
            "--audit-log-maxsize=2000",
        ]
        self.follow_from_the_start()

    def start_extender(self) -> None:
        """Start both replicas, and wait until the Service has an address."""
        if not self.replicas:
            self._prepare()
        for replica in self.replicas:
            self.start(replica)
        self.until(lambda: self.endpoint.port, "one replica leads")

    def stop_extender(self) -> None:
        """Stop both replicas."""
        for replica in self.replicas:
            if replica.process is not None:
                replica.process.stop(signal.SIGKILL)
        if hasattr(self, "_reflector"):
            self._follower_api.close()
            self._reflector.stop(PATIENCE)
            del self._reflector

    def _prepare(self) -> None:
        """Create pods and uplinks of the replicas, the Service, and its followers."""
        served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.tls / "ca.crt")
        served.load_cert_chain(self.tls / "extender.crt", self.tls / "extender.key")
        served.verify_mode = ssl.CERT_REQUIRED
        self._as_scheduler = ssl.create_default_context(cafile=self.tls / "ca.crt")
        self._as_scheduler.load_cert_chain(self.tls / "scheduler.crt", self.tls / "scheduler.key")
        backend = lambda: self.endpoint.port  # noqa: E731
        self.service = ServicePort(self._network, backend, served, self._as_scheduler)
        self.asked_port = self.service.port
        for name in ("extender-a", "extender-b"):
            self.replicas.append(self.add_replica(name))
        self._follower_api = ApiServer.from_kubeconfig(self.control_plane.kubeconfig())
        self._reflector = Reflector(self._follower_api, Watched(SLICES, "endpoint"), self.endpoint)
        self._reflector.start()

    def add_replica(self, pod: str) -> Replica:
        """A replica that does not run yet, with its pod object."""
        port = urlsplit(self.control_plane.url).port
        assert port is not None
        uplink = Uplink(self._network, port, self._new_source())
        self.create(
            f"/api/v1/namespaces/{NAMESPACE}/pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": pod, "labels": {"app.kubernetes.io/name": "gpu-topology"}},
                "spec": {
                    "nodeName": "control-plane",
                    "containers": [{"name": "extender", "image": "example/extender"}],
                },
            },
        )
        return Replica(pod, free_port(), free_port(), free_port(), uplink)

    def start(self, replica: Replica) -> None:
        """Start a replica's process; it is not waited for. Its address on the network is new."""
        assert not replica.runs
        replica.uplink.source = self._new_source()
        replica.paused = False
        log = self._folder / f"{replica.pod}.log"
        command = self.extender_command(
            (replica.port, replica.admin_port, replica.metrics_port),
            "--leader-elect",
            f"--lease-seconds={self._lease_seconds}",
            f"--pod-namespace={NAMESPACE}",
            f"--pod-name={replica.pod}",
            f"--pod-ip={POD_ADDRESS}",
            f"--kubeconfig={self._kubeconfig(replica)}",  # the last one counts
        )
        program = [*self._program, *command[command.index("extender") :]]
        environment = {**self._environment, clocks.VARIABLE: str(replica.clock_rate)}
        replica.process = Process(replica.pod, [sys.executable, *program], log, environment)

    def until_told(self, name: str, wanted: Callable[[dict[str, Any]], object]) -> None:
        """Do not wait: these tests judge what has happened, whichever replica knew what."""

    def ready(self, replica: Replica) -> bool:
        """Whether a replica has read everything."""
        try:
            url = f"http://127.0.0.1:{replica.metrics_port}/readyz"
            return httpx.get(url, timeout=2.0).is_success
        except httpx.HTTPError:
            return False

    def leader(self) -> Replica:
        """The replica that the Service names."""
        return next(r for r in self.replicas if r.port == self.endpoint.port)

    def standby(self) -> Replica:
        """The other one."""
        return next(r for r in self.replicas if r.port != self.endpoint.port)

    def follow_from_the_start(self) -> None:
        """The next :meth:`take_down` begins with the first thing that etcd has stored."""
        self._etcd = sources.EtcdHistory(self.control_plane.etcd_url)
        self._audited: set[Written] = set()

    def take_down(self, history: Recorder) -> None:
        """Add to a history what etcd and the API server have written down since the last time."""
        history.extend(self._etcd.new())
        written = [w for w in sources.audited(self.audit) if w not in self._audited]
        history.extend(written)
        self._audited.update(written)

    def replace_replicas(
        self,
        lease_seconds: float = SHIPPED_LEASE,
        program: Sequence[str] = PRODUCT,
        **environment: str,
    ) -> None:
        """Stop both replicas and start them again; wait until one leads.

        ``program`` is the arguments of Python that run the extender, ``environment`` what it gets
        besides.
        """
        self._lease_seconds, self._program = lease_seconds, program
        self._environment = environment
        for replica in self.replicas:
            if replica.process is not None:
                replica.process.stop()
        for replica in self.replicas:
            self.start(replica)
        self.until(lambda: all(map(self.ready, self.replicas)), "both replicas are ready")
        self.until(lambda: self.leads(self.leader()), "one of them leads")

    @contextmanager
    def without_scheduler(self) -> Iterator[None]:
        """Nothing is bound inside the block."""
        self.control_plane.stop_scheduler()
        try:
            yield
        finally:
            self.start_scheduler()

    def leads(self, replica: Replica) -> bool:
        """Whether a replica answers verbs."""
        try:
            return self.ask(replica, timeout=2.0) == 200
        except httpx.HTTPError:
            return False

    def ask(self, replica: Replica, timeout: float = PATIENCE) -> int:
        """Ask a replica itself to filter no nodes; the HTTP code of its answer."""
        url = f"https://127.0.0.1:{replica.port}/scheduler/filter"
        body = {"Pod": {"metadata": {"name": "asked"}}, "NodeNames": []}
        found = httpx.post(url, json=body, timeout=timeout, verify=self._as_scheduler)
        return found.status_code

    def _new_source(self) -> str:
        self._sources += 1
        return f"127.0.{1 + self._sources // 200}.{1 + self._sources % 200}"

    def _kubeconfig(self, replica: Replica) -> Path:
        """The extender's kubeconfig, by way of the replica's uplink."""
        content = yaml.safe_load(self.control_plane.kubeconfig(EXTENDER).read_text())
        content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{replica.uplink.port}"
        path = self._folder / f"{replica.pod}.kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return path

    def logs(self) -> str:
        """The ends of the logs, for a failure."""
        return self._logs()

    def _logs(self) -> str:
        names = [replica.pod for replica in self.replicas] + ["kube-scheduler"]
        return "\n".join(
            f"--- {name}\n{path.read_text(errors='replace')[-2500:]}"
            for name in names
            if (path := self._folder / f"{name}.log").exists()
        )
