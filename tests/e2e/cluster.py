"""A real API server and scheduler with our extender plugged in as the manifests say."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from scheduler_extender.cli import main
from tests.commands import asked
from tests.e2e.controlplane import PERIOD, ControlPlane, Process
from tests.programs import free_port
from tests.waiting import PATIENCE, eventually
from topology import codec
from topology.core.graph import NodeTopology
from topology.core.report import Report

ROOT = Path(__file__).parent.parent.parent
EXTENDER = "system:serviceaccount:gpu-topology-system:gpu-topology-extender"
RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"
PODS = "/api/v1/namespaces/default/pods"
# What every configuration of kube-scheduler says here.
OWN_IDENTITY = {
    "clientConnection": {"kubeconfig": "{kubeconfig}"},
    "leaderElection": {"leaderElect": False},
}
# kube-scheduler's configuration without us.
STOCK = str(
    yaml.safe_dump(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            **OWN_IDENTITY,
        }
    )
)


class RealCluster:
    """Control plane, manifests applied, extender as a process with the rights they give it.

    ``users`` are further users of the API server, with their groups; what the ``audited`` ask is
    written down.
    """

    def __init__(
        self,
        folder: Path,
        binaries: Path,
        users: Mapping[str, Sequence[str]] | None = None,
        audited: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        extender = {EXTENDER: ["system:serviceaccounts", "system:authenticated"]}
        self.control_plane = ControlPlane(folder, binaries, {**extender, **(users or {})}, audited)
        self._stack = ExitStack()
        self.ports = (free_port(), free_port(), free_port())
        # Where kube-scheduler asks: at the extender, or at whoever stands before it.
        self.asked_port = self.ports[0]
        self.tls = folder / "tls"
        self.client_name = "kube-scheduler"
        self.extender_flags: Sequence[str] = ()  # Further flags of the extender, for its next start
        self.release: Mapping[str, str] = {}  # Where the extender's code is, for its next start
        # Fields of kube-scheduler's entry for the extender that differ from the shipped ones, for
        # its next start; None takes one out.
        self.changed_extender: Mapping[str, Any] = {}
        self._extender: Process | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.control_plane)
            self.api = stack.enter_context(self.control_plane.client())
            self.make_certificates()
            self.admin = stack.enter_context(self.people())
            self.metrics = stack.enter_context(self.people(self.ports[2]))
            self.install()
            stack.callback(self.stop_extender)
            self.start_extender()
            self.start_schedulers(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def install(self) -> None:
        """Apply the manifests, and wait until the API server serves what they define.

        A watch on records that is opened earlier may bring nothing, and ends after 90 s only.
        """
        self.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests" / "base"))
        self.until(self._watches_records, "records can be watched")

    def _watches_records(self) -> bool:
        """Whether the API server takes a watch on records; it lasts a second."""
        briefly = {"watch": "true", "timeoutSeconds": "1"}
        return self.api.get(RECORDS, params=briefly).is_success

    def start_schedulers(self, stack: ExitStack) -> None:
        """Start kube-scheduler; the control plane stops it, and ``stack`` what else is started."""
        self.start_scheduler()

    def kubectl(self, *words: str) -> str:
        """What kubectl prints as the admin; a failure ends the test with what it said."""
        return self.control_plane.kubectl(*words)

    def make_certificates(self, *words: object) -> None:
        """Run ``gpu-topology certificates``; with ``--ca`` and the folder it renews."""
        names = ("--client-name", self.client_name)
        done = asked(main, "certificates", "--output", self.tls, *names, *words)
        assert done.returncode == 0, done.stderr

    def people(self, port: int | None = None) -> httpx.Client:
        """A client of a plain port: by default the one for people."""
        url = f"http://127.0.0.1:{port or self.ports[1]}"
        return httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False)

    def extender_command(self, ports: tuple[int, int, int], *flags: str) -> list[str]:
        """The extender as the manifests start it, on loopback, with the rights of its account."""
        return [
            *(sys.executable, "-m", "scheduler_extender", "extender"),
            f"--kubeconfig={self.control_plane.kubeconfig(EXTENDER)}",
            f"--port={ports[0]}",
            f"--admin-port={ports[1]}",
            f"--metrics-port={ports[2]}",
            f"--tls-cert={self.tls / 'extender.crt'}",
            f"--tls-key={self.tls / 'extender.key'}",
            f"--client-ca={self.tls / 'ca.crt'}",
            f"--client-name={self.client_name}",
            *flags,
        ]

    def start_extender(self) -> None:
        """Start the extender and wait until it is synced."""
        command = self.extender_command(self.ports, *self.extender_flags)
        log = self._folder / "extender.log"
        self._extender = Process("extender", command, log, self.release)
        self.until(lambda: self._ready(), "the extender is ready")

    def stop_extender(self) -> None:
        """Stop the extender."""
        if self._extender is not None:
            self._extender.stop()
            self._extender = None

    def kill_extender(self) -> None:
        """End the extender with SIGKILL, as a node that loses power would."""
        assert self._extender is not None
        self._extender.stop(signal.SIGKILL)
        self._extender = None

    def restart_scheduler(self, **tls: str | None) -> None:
        """Stop kube-scheduler and start it; it lists everything again.

        ``tls`` changes fields of the extender's ``tlsConfig``; None takes one out.
        """
        self.control_plane.stop_scheduler()
        self.start_scheduler(tls)

    def start_scheduler(self, tls: Mapping[str, str | None] | None = None) -> None:
        """Start kube-scheduler with us plugged in; ``tls`` as in :meth:`restart_scheduler`."""
        self.control_plane.start_scheduler(str(yaml.safe_dump(self.scheduler_config(tls))))

    @contextmanager
    def stock(self) -> Iterator[None]:
        """A cluster without us: no extender, and kube-scheduler with its own defaults."""
        self.control_plane.stop_scheduler()
        self.stop_extender()
        self.control_plane.start_scheduler(STOCK)
        try:
            yield
        finally:
            self.control_plane.stop_scheduler()
            self.start_extender()
            self.start_scheduler()

    def _ready(self) -> bool:
        assert self._extender is not None
        assert self._extender.alive(), self._extender.text()[-3000:]
        try:
            return self.metrics.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def scheduler_config(self, tls: Mapping[str, str | None] | None = None) -> dict[str, Any]:
        """The configuration that we ship, with this machine's address and files and no leader
        election; the caller's to change. ``tls`` as in :meth:`restart_scheduler`."""
        shipped = (ROOT / "manifests" / "scheduler" / "kube-scheduler-config.yaml").read_text()
        return {**self.adapted(yaml.safe_load(shipped), tls), **OWN_IDENTITY}

    def adapted(
        self, config: dict[str, Any], tls: Mapping[str, str | None] | None = None
    ) -> dict[str, Any]:
        """A configuration of kube-scheduler with this machine's address and files."""
        (extender,) = config["extenders"]
        extender["urlPrefix"] = f"https://127.0.0.1:{self.asked_port}/scheduler"
        files = {
            field: str(self.tls / Path(value).name) if field.endswith("File") else value
            for field, value in extender["tlsConfig"].items()
        }
        extender["tlsConfig"] = {k: v for k, v in {**files, **(tls or {})}.items() if v}
        changed = {**extender, **self.changed_extender}
        return {**config, "extenders": [{k: v for k, v in changed.items() if v is not None}]}

    # Objects.

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST an object."""
        answer = self.api.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()  # type: ignore[no-any-return]

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Merge-patch an object."""
        kind = {"Content-Type": "application/merge-patch+json"}
        answer = self.api.patch(path, content=json.dumps(body), headers=kind)
        assert answer.is_success, answer.text
        return answer.json()  # type: ignore[no-any-return]

    def add_node(self, name: str, gpus: int) -> None:
        """A Node that its kubelet would call Ready."""
        amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
        if not gpus:
            del amounts["nvidia.com/gpu"]
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "E2e"}],
            },
        }
        self.create("/api/v1/nodes", node)

    def add_priority_classes(self, **values: int) -> None:
        """PriorityClasses of these names and values, as :meth:`add_priority_class` has them."""
        for name, value in values.items():
            self.add_priority_class(name, value)

    def add_priority_class(self, name: str, value: int, **fields: object) -> None:
        """A PriorityClass; returns once the API server lets pods name it."""
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        body = {**kind, "metadata": {"name": name}, "value": value, **fields}
        self.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        self.until(partial(self._may_name, name), f"pods may name the PriorityClass {name}")

    def _may_name(self, priority: str) -> bool:
        """Whether the API server takes a pod of this PriorityClass; it hears of one by a watch."""
        spec = {"priorityClassName": priority, "containers": [{"name": "main", "image": "none"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": spec}
        return self.api.post(PODS, params={"dryRun": "All"}, json=pod).is_success

    def add_record(self, topology: NodeTopology, report: Report | None = None) -> None:
        """The GPUTopology that a node's agent would publish: spec, then status."""
        record = codec.encode(topology, report or Report("boot", 1))
        self.create(RECORDS, {k: v for k, v in record.items() if k != "status"})
        self.put_report(topology.name, report or Report("boot", 1))

    def record(self, name: str) -> dict[str, Any]:
        """A node's GPUTopology; empty where there is none."""
        answer = self.api.get(f"{RECORDS}/{name}")
        return answer.json() if answer.is_success else {}

    def put_report(self, name: str, report: Report) -> None:
        """A new report of a node's agent, which has just asked the kubelet and knows its pods."""
        pods = self.api.get("/api/v1/pods", params={"limit": 1}).json()
        report = replace(report, pods_version=pods["metadata"]["resourceVersion"])
        self.patch(f"{RECORDS}/{name}/status", {"status": codec.encode_report(report)})

    def add_machine(self, topology: NodeTopology, report: Report | None = None) -> None:
        """Node and record; returns once the extender has heard of the record."""
        self.add_record(topology, report)
        self.add_node(topology.name, len(topology.gpus))
        self.until_heard(topology.name)

    def until_heard(self, name: str) -> None:
        """Wait until the extender knows a node's record as it stands."""

        def heard(found: dict[str, Any]) -> bool:
            known = found.get("record")
            return known is not None and codec.decode(known) == codec.decode(self.record(name))

        self.until_told(name, heard)

    def until_told(self, name: str, wanted: Callable[[dict[str, Any]], object]) -> None:
        """Wait until the extender's answer about a node is as wanted: its watches may be late."""

        def told() -> bool:
            found = self.admin.get(f"/v1/nodes/{name}")
            return found.is_success and bool(wanted(found.json()))

        self.until(told, f"the extender has heard of {name}")

    def add_pod(
        self,
        name: str,
        gpus: int,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        """A pod with one container; annotations come without our prefix."""
        container: dict[str, Any] = {"name": "main", "image": "example/work"}
        if gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "annotations": {f"gpu-topology.io/{k}": v for k, v in (annotations or {}).items()},
            },
            "spec": {"containers": [container], **spec},
        }
        return self.create(PODS, pod)

    def pod(self, name: str) -> dict[str, Any]:
        """The pod as it is now."""
        return self.api.get(f"{PODS}/{name}").json()  # type: ignore[no-any-return]

    def node_of(self, name: str) -> str:
        """Where a pod is bound to, once it is.

        We wait less than the five minutes after which kube-scheduler looks by itself again at a pod
        that fitted nowhere: one that is bound was woken.
        """
        self.until(lambda: self.pod(name)["spec"].get("nodeName"), f"{name} is bound")
        return str(self.pod(name)["spec"]["nodeName"])

    def unschedulable(self, name: str) -> str:
        """The message with which kube-scheduler said that a pod fits nowhere."""

        def condition() -> str:
            for found in self.pod(name)["status"].get("conditions", []):
                if found["type"] == "PodScheduled" and found.get("reason") == "Unschedulable":
                    return str(found["message"])
            return ""

        self.until(condition, f"{name} is unschedulable")
        return condition()

    def remove_pod(self, name: str) -> None:
        """Delete a pod at once. It may be gone already, as one that ends by itself."""
        answer = self.api.delete(f"{PODS}/{name}", params={"gracePeriodSeconds": 0})
        assert answer.is_success or answer.status_code == HTTPStatus.NOT_FOUND, answer.text

    def until_bound(self, *names: str, namespace: str = "default") -> None:
        """Wait until kube-scheduler has heard that these pods are bound: :meth:`calls` counts their
        binds from then on. A pod has its node before its bind is answered."""
        events = f"/api/v1/namespaces/{namespace}/events"

        def left() -> list[str]:
            found = self.api.get(events, params={"fieldSelector": "reason=Scheduled"}).json()
            return sorted(set(names) - {e["involvedObject"]["name"] for e in found["items"]})

        self.until(lambda: not left(), f"kube-scheduler knows that {names} are bound")

    def calls(self, verb: str) -> int:
        """How many requests for a verb the extender has answered, whatever the answer."""
        total = 0.0
        for line in self.metrics.get("/metrics").text.splitlines():
            if line.startswith('gpu_topology_requests_total{code="') and f'verb="{verb}"' in line:
                total += float(line.rsplit(" ", 1)[1])
        return int(total)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something holds; a failure says what, with the ends of the logs."""
        eventually(condition, what, every=PERIOD, detail=self._logs)

    def _logs(self) -> str:
        return "\n".join(
            f"--- {name}\n{path.read_text(errors='replace')[-2500:]}"
            for name in ("extender", "kube-scheduler")
            if (path := self._folder / f"{name}.log").exists()
        )
