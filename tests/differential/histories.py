"""Random histories of one node: what happens on it, step by step, as plain JSON.

A step that makes no sense where it comes (an admission of a pod that was never bound) is passed
over, so any part of a history is a history: that is what makes shrinking simple.

=========  ===================================================================================
bind       a pod is decided about as filter and bind do, and bound if they would bind it
admit      the kubelet admits a bound pod; others may end in the middle of that
end        an admitted pod ends; ``seen`` says whether we hear of it at once
report     the agent's next report
health     the plugin calls these devices sick, all others healthy
restart    the kubelet starts again; pods that run are admitted anew, the plugin is not back yet
register   the plugin is back
=========  ===================================================================================
"""

from random import Random
from typing import Any

from tests.differential.nodes import RESOURCE, Node, random_node

History = dict[str, Any]
Step = dict[str, Any]

CONSTRAINTS: tuple[dict[str, str], ...] = (
    {},
    {"link": "nvlink"},
    {"link": "nvlink", "shape": "connected"},
    {"link": "phb"},
    {"same-numa": "true"},
    {"min-gpu-memory": "40Gi"},
)
# Quiet: a report after every admission. Busy: pods come, go and end in any order.
KINDS = ("quiet", "busy", "health", "restart")


def random_history(seed: int) -> History:
    """The history of this seed."""
    rng = Random(seed)
    node = random_node(rng)
    kind = rng.choices(KINDS, (5, 5, 1, 1))[0]
    return {"seed": seed, "kind": kind, "node": node, "steps": _steps(node, kind, rng)}


def _steps(node: Node, kind: str, rng: Random) -> list[Step]:
    devices = [d["id"] for d in node["devices"]]
    steps: list[Step] = [{"do": "report"}]
    waiting: list[str] = []
    admitted: list[str] = []
    for n in range(rng.randint(4, 9)):
        uid = f"pod-{n}"
        steps.append({"do": "bind", "pod": random_pod(uid, node, rng)})
        waiting.append(uid)
        if kind == "quiet":
            steps.append({"do": "admit", "uid": uid})
            admitted.append(uid)
            steps.append({"do": "report"})
            waiting.clear()
        while waiting and kind != "quiet" and rng.random() < 0.6:
            chosen = waiting.pop(rng.randrange(len(waiting)))
            steps.append({"do": "admit", "uid": chosen, "ends": _ends(admitted, rng)})
            admitted.append(chosen)
        if admitted and rng.random() < 0.35:
            gone = admitted.pop(rng.randrange(len(admitted)))
            steps.append({"do": "end", "uid": gone, "seen": kind == "quiet" or rng.random() < 0.5})
        if kind == "health" and rng.random() < 0.5:
            sick = rng.sample(devices, rng.randint(0, max(1, len(devices) // 4)))
            steps.append({"do": "health", "sick": sorted(sick)})
        if kind == "restart" and rng.random() < 0.3:
            steps += [{"do": "restart"}, {"do": "register"}]
        if rng.random() < 0.5:
            steps.append({"do": "report"})
    return steps


def _ends(admitted: list[str], rng: Random) -> list[dict[str, str]]:
    """Sometimes a pod ends in the middle of another one's admission."""
    if not admitted or rng.random() < 0.75:
        return []
    gone = admitted.pop(rng.randrange(len(admitted)))
    moment = rng.choice(("hint", "allocate"))
    return [{"uid": gone, "container": rng.choice(("main", "init", "second")), "moment": moment}]


def random_pod(uid: str, node: Node, rng: Random) -> dict[str, Any]:
    """A pod as ``kubelet/protocol.go`` has it, with what it asks of us as ``wish``."""
    count = rng.choice((1, 1, 2, 2, 2, 3, 4))
    count = min(count, len(node["devices"]))
    exclusive = rng.random() < 0.5
    containers = [_container("main", count, exclusive, rng)]
    init: list[dict[str, Any]] = []
    if rng.random() < 0.12:
        init.append(_container("init", rng.choice((0, 1, 2, 3)), exclusive, rng))
    if rng.random() < 0.08:
        init.append({**_container("sidecar", 1, exclusive, rng), "sidecar": True})
    if rng.random() < 0.12:
        containers.append(_container("second", rng.choice((0, 1, 2)), exclusive, rng))
    found: dict[str, Any] = {"uid": uid, "name": uid, "containers": containers}
    if init:
        found["init"] = init
    found["wish"] = rng.choice(CONSTRAINTS)
    return found


def _container(name: str, count: int, exclusive: bool, rng: Random) -> dict[str, Any]:
    """A container; an ``exclusive`` one is of a pod of the class Guaranteed."""
    limits = {RESOURCE: str(count)} if count else {}
    if exclusive:
        cpus = rng.choice(("1", "2", "2", "4", "500m"))
        limits |= {"cpu": cpus, "memory": rng.choice(("1Gi", "2Gi", "4Gi"))}
    return {"name": name, "limits": limits}


def manifest(pod: dict[str, Any], node: str | None = None) -> dict[str, Any]:
    """The pod as kube-scheduler sends it."""

    def written(container: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"name": container["name"]}
        found["resources"] = {"limits": container["limits"], "requests": container["limits"]}
        if container.get("sidecar"):
            found["restartPolicy"] = "Always"
        return found

    spec: dict[str, Any] = {"containers": [written(c) for c in pod["containers"]]}
    if pod.get("init"):
        spec["initContainers"] = [written(c) for c in pod["init"]]
    if node is not None:
        spec["nodeName"] = node
    annotations = {f"gpu-topology.io/{key}": value for key, value in pod["wish"].items()}
    return {
        "metadata": {
            "name": pod["name"],
            "namespace": "default",
            "uid": pod["uid"],
            "annotations": annotations,
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }
