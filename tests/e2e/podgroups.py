"""Gangs: PodGroups of kube-scheduler, and pods that name one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.e2e.cluster import PODS, RealCluster


@dataclass(frozen=True, slots=True)
class Stage:
    """How far gang scheduling is in a release: the version of its API and the feature gates."""

    version: str
    gates: tuple[str, ...]

    @property
    def flag(self) -> str:
        """Turns the gates on, of kube-apiserver and kube-scheduler."""
        return "--feature-gates=" + ",".join(f"{gate}=true" for gate in self.gates)

    @property
    def served(self) -> str:
        """Lets kube-apiserver serve PodGroups."""
        return f"--runtime-config=scheduling.k8s.io/{self.version}=true"


BETA = Stage("v1beta1", ("GenericWorkload",))  # Kubernetes 1.37


@dataclass(frozen=True, slots=True)
class Gangs:
    """Makes gangs in a cluster, and tells how they stand."""

    real: RealCluster
    stage: Stage

    @property
    def path(self) -> str:
        """Where PodGroups are."""
        return f"/apis/scheduling.k8s.io/{self.stage.version}/namespaces/default/podgroups"

    def podgroup(self, name: str, at_least: int, **spec: Any) -> None:
        """A PodGroup whose pods are bound only where ``at_least`` of them have a place."""
        policy = {"schedulingPolicy": {"gang": {"minCount": at_least}}}
        self.real.create(
            self.path,
            {
                "apiVersion": f"scheduling.k8s.io/{self.stage.version}",
                "kind": "PodGroup",
                "metadata": {"name": name},
                "spec": {**policy, **spec},
            },
        )

    def of(
        self, name: str, size: int, gpus: int, annotations: Mapping[str, str], **spec: Any
    ) -> list[str]:
        """A gang of equal pods, ``NAME-0`` and so on, all or nothing; the pods' names."""
        self.podgroup(name, size)
        names = [f"{name}-{i}" for i in range(size)]
        for each in names:
            self.real.create(PODS, member(each, name, gpus, annotations, **spec))
        return names

    def condition(self, name: str) -> dict[str, Any]:
        """What kube-scheduler says of a PodGroup; empty before it has tried."""
        status = self.real.api.get(f"{self.path}/{name}").json().get("status", {})
        return next((c for c in status.get("conditions", []) if c["type"] in SCHEDULED), {})


# The condition that says whether a gang had a place, from 1.37 on and before.
SCHEDULED = ("PodGroupInitiallyScheduled", "PodGroupScheduled")


def member(
    name: str, gang: str, gpus: int, annotations: Mapping[str, str], **spec: Any
) -> dict[str, Any]:
    """A pod that names a PodGroup; annotations come without our prefix."""
    container = {
        "name": "main",
        "image": "example/work",
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    ours = {f"gpu-topology.io/{key}": value for key, value in annotations.items()}
    in_gang = {"schedulingGroup": {"podGroupName": gang}, "containers": [container]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": ours},
        "spec": {**in_gang, **spec},
    }


def bound(real: RealCluster, names: Sequence[str]) -> dict[str, str]:
    """The nodes of those that are bound now, by pod."""
    found = {name: real.pod(name).get("spec", {}).get("nodeName") for name in names}
    return {name: node for name, node in found.items() if node}
