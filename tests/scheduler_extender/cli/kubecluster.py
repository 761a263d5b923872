"""A fake API server with GPU nodes and pods in it, and a kubeconfig for it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scheduler_extender.cli import main
from scheduler_extender.kube.sinks import NODES_PATH, RECORDS_PATH
from tests.commands import Done, asked
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from topology import codec
from topology.core.devices import DeviceId, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Health, Report

Held = tuple[str, *tuple[int, ...]]  # a namespace, and the GPUs that a pod of it holds


class Cluster:
    """See the module."""

    def __init__(self, fake: FakeApiServer, folder: Path) -> None:
        self.fake = fake
        self.kubeconfig = fake.write_kubeconfig(folder / "kubeconfig")

    def node(self, node: NodeTopology, **held: Held) -> None:
        """A node, its record, and pods that hold GPUs, as ``name=(namespace, GPU, …)``."""
        self.labelled(node, {}, None, **held)

    def labelled(
        self,
        node: NodeTopology,
        labels: Mapping[str, str],
        sick: Mapping[int, str] | None = None,
        **held: Held,
    ) -> None:
        """The same with labels on the Node, and why which GPUs are sick."""
        allocations = []
        for name, (namespace, *gpus) in held.items():
            manifest = pod(len(gpus), name=name, uid=name, node=node.name, phase="Running")
            self.pod(manifest, namespace)
            ids = tuple(DeviceId(node.gpus[gpu].uuid) for gpu in gpus)
            allocations.append(
                Allocation(PodUid(name), namespace, name, "main", "nvidia.com/gpu", ids)
            )
        now = datetime.now(UTC).isoformat()
        health = tuple(Health(node.gpus[gpu].uuid, False, why) for gpu, why in (sick or {}).items())
        report = Report("boot", 1, allocations=tuple(allocations), health=health, observed_at=now)
        self.fake.put(RECORDS_PATH, codec.encode(node, report))
        status = {"allocatable": {"nvidia.com/gpu": str(len(node.gpus)), "pods": "110"}}
        metadata = {"name": node.name, "labels": dict(labels)}
        self.fake.put(NODES_PATH, {"metadata": metadata, "status": status})

    def pod(
        self,
        manifest: dict[str, Any],
        namespace: str = "team-a",
        owner: dict[str, Any] | None = None,
    ) -> None:
        """A pod, perhaps made by an ``owner``."""
        manifest["metadata"]["namespace"] = namespace
        if owner is not None:
            manifest["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        self.fake.put(f"/api/v1/namespaces/{namespace}/pods", manifest)

    def asked(self, *words: object) -> Done:
        """Run a command on this cluster; the context's namespace is team-a."""
        return asked(main, *words, "--kubeconfig", self.kubeconfig, "-n", "team-a")

    def why(self, *words: object) -> Done:
        """``why`` about this cluster."""
        return self.asked("why", *words)
