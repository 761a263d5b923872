"""ReplicaSets: kube-controller-manager makes a new pod for each that fails."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.e2e.cluster import RealCluster
from tests.e2e.pods import PODS, gpu_pod

REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"


def replica_set(
    name: str,
    replicas: int,
    gpus: int,
    nodes: Sequence[str],
    *,
    limits: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A ReplicaSet whose pods have one container with so many GPUs, for these nodes alone.

    ``limits`` are of that container, besides its GPUs. Annotations come without our prefix.
    """
    pod = gpu_pod(name, [gpus], annotations=annotations)
    spec = {key: value for key, value in pod["spec"].items() if key != "restartPolicy"}
    spec["containers"][0]["resources"]["limits"] |= limits or {}
    among = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [among]}]}
    spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": pod["metadata"]["annotations"]},
                "spec": spec,
            },
        },
    }


def remove(cluster: RealCluster, name: str) -> None:
    """Delete a ReplicaSet and all its pods, and wait until they are gone."""
    cluster.patch(f"{REPLICA_SETS}/{name}", {"spec": {"replicas": 0}})

    def settled() -> bool:
        found = cluster.api.get(f"{REPLICA_SETS}/{name}").json()
        status, wanted = found["status"], found["metadata"]["generation"]
        return bool(status.get("observedGeneration") == wanted and status["replicas"] == 0)

    cluster.until(settled, f"{name} has no replicas")
    assert cluster.api.delete(f"{REPLICA_SETS}/{name}").is_success
    selector = {"labelSelector": f"app={name}"}
    answer = cluster.api.delete(PODS, params={**selector, "gracePeriodSeconds": 0})
    assert answer.is_success, answer.text
    cluster.until(
        lambda: not cluster.api.get(PODS, params=selector).json()["items"],
        f"the pods of {name} are gone",
    )
