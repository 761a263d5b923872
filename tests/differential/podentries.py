"""What PodResources shows, as our agent writes it into a record."""

from tests.differential.managers import Json
from tests.differential.nodes import RESOURCE, Node


def status_of(shown: Json, sequence: int, *, static: bool) -> Json:
    """The ``status`` of a record; with ``static`` managers it says who has CPUs and memory."""
    pods = shown.get("pods") or []
    status: Json = {
        "bootID": "boot",
        "sequence": sequence,
        "allocatable": [d["id"] for d in shown.get("allocatable") or []],
        "allocations": [
            {
                "podUID": pod["uid"],
                "namespace": "default",
                "pod": pod["uid"],
                "container": container["name"],
                "resource": RESOURCE,
                "deviceIds": container["devices"],
            }
            for pod in pods
            for container in pod["containers"]
            if container["devices"]
        ],
    }
    if static:
        status["exclusive"] = [_exclusive(pod) for pod in pods]
    return status


def _exclusive(pod: Json) -> Json:
    return {
        "namespace": "default",
        "pod": pod["uid"],
        "cpus": ",".join(str(cpu) for c in pod["containers"] for cpu in c["cpus"] or ()),
        "memory": [
            {"type": block["type"], "bytes": block["size"], "numaNodes": block["numa"]}
            for c in pod["containers"]
            for block in c["memory"] or ()
        ],
    }


def reserved_cpus(node: Node, shown: Json) -> list[int]:
    """The CPUs that no pod may have for its own, as the kubelet chose them; none if all may."""
    every = {cpu for numa in node["numa"] for core in numa["cores"] for cpu in core}
    allocatable = set(shown.get("allocatableCpus") or every)
    return sorted(every - allocatable)
