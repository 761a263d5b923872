"""A kubelet that aligns pods to NUMA nodes, with NVIDIA's plugin: two sockets, static CPUs.

What it writes of the pods that it refuses is what played kubelets write, and what ``audit`` counts.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.cli import main
from scheduler_extender.files.clusterfile import parse
from scheduler_extender.simulator.registration import RegisteredNodes, remove, survey
from scheduler_extender.simulator.scene import Observer
from tests.commands import asked
from tests.e2e.nvidiastack import GPU, PluginSettings
from tests.e2e.pods import PODS, gpu_pod
from tests.e2e.processors import Processors
from tests.e2e.realnodes import RealNode, RealNodes
from topology import codec
from topology.kubeapi.apiserver import ApiServer

pytestmark = pytest.mark.e2e
NODE = "aligned"
SHARED = "shared"
ONE_SHARE = f"""
version: v1
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: true
    resources: [{{name: {GPU}, replicas: 2}}]
"""
PROCESSORS = Processors(sockets=2, cores=16)
NODES = {
    NODE: RealNode(
        "dgx1-v100",
        processors=PROCESSORS,
        overrides={
            "topologyManagerPolicy": "single-numa-node",
            "cpuManagerPolicy": "static",
            "reservedSystemCPUs": "0",
        },
    ),
    SHARED: RealNode("t4-4", PluginSettings(config=ONE_SHARE, serves=((GPU, 8),))),
}
PLAYED = f"""
kind: MachineGroup
machine: dgx1-v100
count: 1
namePrefix: played-{NODE}-
allocator: {{topologyManagerPolicy: single-numa-node}}
---
kind: MachineGroup
machine: t4-4
count: 1
namePrefix: played-{SHARED}-
sharing: {{replicas: 2, failRequestsGreaterThanOne: true}}
"""
EVENTS = "/api/v1/namespaces/default/events"


def create(nodes: RealNodes, name: str, gpus: int, cpus: int) -> None:
    """A pod with CPUs of its own: integer limits that are its requests, memory, too."""
    pod = gpu_pod(name, [gpus], node=NODE)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    limits |= {"cpu": str(cpus), "memory": "64Mi"}
    nodes.cluster.create(PODS, pod)


def status(nodes: RealNodes, name: str) -> dict[str, Any]:
    """A pod's status, once its kubelet has decided."""
    found: dict[str, Any] = {}

    def decided() -> bool:
        found.update(nodes.cluster.pod(name)["status"])
        return found["phase"] in ("Running", "Failed")

    nodes.cluster.until(decided, f"the kubelet has decided about {name}")
    return found


def test_pods_are_aligned_or_refused(real_nodes: RealNodes) -> None:
    """Three of the four GPUs of each socket go; two are left then, and no pod gets both."""
    kubelet = real_nodes.kubelets[NODE]
    for name in ("first", "second"):
        create(real_nodes, name, 3, 4)
        assert status(real_nodes, name)["phase"] == "Running"
        (ids,) = kubelet.pod_resources.holdings()["default", name].values()
        numa = {kubelet.topology.gpus[p].numa_node for p in kubelet.positions(ids)}
        assert len(numa) == 1, ids
    create(real_nodes, "across", 2, 2)
    found = status(real_nodes, "across")
    assert (found["phase"], found["reason"]) == ("Failed", "TopologyAffinityError")
    create(real_nodes, "single", 1, 2)
    assert status(real_nodes, "single")["phase"] == "Running"


def refusal(nodes: RealNodes, name: str, gpus: int, node: str) -> Any:
    """What a kubelet writes of a pod that it refuses: its status, and its Event.

    Without times and versions, and with the same names for every pod and node.
    """
    nodes.cluster.create(PODS, gpu_pod(name, [gpus], node=node))
    found = status(nodes, name)
    about = {"involvedObject.name": name, "source": "kubelet"}
    query = {"fieldSelector": ",".join(f"{key}={value}" for key, value in about.items())}
    events: list[dict[str, Any]] = []

    def told() -> bool:
        events[:] = nodes.cluster.api.get(EVENTS, params=query).json()["items"]
        return bool(events)

    nodes.cluster.until(told, f"{name} has an Event")
    (event,) = events
    del event["metadata"]
    found.pop("observedGeneration", None)  # not of every release, and read by nobody
    changing = ("firstTimestamp", "lastTimestamp", "resourceVersion", "startTime", "uid")

    def steady(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: "" if k in changing else steady(v) for k, v in value.items()}
        return {name: "the pod", node: "the node"}.get(value, value)

    return steady({"status": found, "event": event})


REFUSALS = (
    (NODE, 5, "TopologyAffinityError", "Topology locality"),
    (SHARED, 9, "UnexpectedAdmissionError", f"{GPU}. Requested: 9, Available: 8,"),
    (SHARED, 2, "UnexpectedAdmissionError", "maximum request size for shared resources is 1"),
)


def test_an_audit_counts_each_refusal_of_a_real_kubelet_once(
    real_nodes: RealNodes, tmp_path: Path
) -> None:
    cluster, made = real_nodes.cluster, set[str]()
    for node, gpus, *_ in REFUSALS:
        made.add(f"audited-{gpus}")
        refusal(real_nodes, f"audited-{gpus}", gpus, node)
    rows = defaultdict[tuple[str, str], set[str]](set)  # with the pod of the test before this one
    for pod in cluster.api.get(PODS).json()["items"]:
        if reason := pod["status"].get("reason"):
            rows[pod["spec"]["nodeName"], reason].add(f"default/{pod['metadata']['name']}")

    def audit(*source: object) -> tuple[dict[tuple[str, str], set[str]], dict[str, int]]:
        """The names by node and reason, and the figures; no pod counts twice."""
        done = asked(main, "audit", *source, "-o", "json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["refusedPods"]
        named = {(row["node"], row["reason"]): {*row["names"]} for row in found["rows"]}
        assert found["pods"] == sum(map(len, named.values()))
        return named, found

    def from_kubectl() -> tuple[dict[tuple[str, str], set[str]], dict[str, int]]:
        seen = tmp_path / "seen.yaml"  # as docs/install/is-it-worth-it.md says
        seen.write_text(cluster.kubectl("get", "nodes,pods,events", "-A", "-o", "yaml"))
        return audit("--cluster", seen)

    cluster.until(
        lambda: all(map(real_nodes.follower.followed, NODES)), "the records show who runs"
    )
    live = ("--kubeconfig", cluster.control_plane.kubeconfig())
    named, figures = audit(*live)
    assert named == rows
    # Five GPUs are on no NUMA node, and the plugin gives one share; nine shares are just too many.
    assert (figures["keptOff"], figures["unknown"]) == (2, 0)
    named, figures = from_kubectl()
    assert named == rows
    assert figures["unknown"] == figures["pods"]

    def remembered() -> set[str]:
        reports = [codec.decode(cluster.record(node)).report for node in NODES]
        return {each.pod for report in reports if report for each in report.history}

    cluster.until(lambda: made <= remembered(), "the agents have seen the refusals")
    for name in made:
        cluster.remove_pod(name)
    assert audit(*live)[0] == rows, "the records have them"
    named, less = from_kubectl()
    rows[NODE, "TopologyAffinityError"].discard("default/audited-5")  # its Event names no resource
    assert named == {where: names for where, names in rows.items() if names}, "the Events are left"
    assert less["doubtful"] == figures["doubtful"] + 1


def test_a_played_kubelet_writes_what_a_real_one_writes(real_nodes: RealNodes) -> None:
    kubeconfig = real_nodes.cluster.control_plane.kubeconfig()
    with RegisteredNodes(
        ApiServer.from_kubeconfig(kubeconfig), parse(PLAYED), Observer()
    ) as played:
        for node, gpus, reason, message in REFUSALS:
            real = refusal(real_nodes, f"real-{node}-{gpus}", gpus, node)
            assert (real["event"]["reason"], real["status"]["reason"]) == (reason, reason)
            assert message in real["event"]["message"]
            name = f"played-{node}"
            assert refusal(real_nodes, f"{name}-{gpus}", gpus, f"{name}-00") == real
    assert played.errors == []
    api = ApiServer.from_kubeconfig(kubeconfig)
    remove(api, survey(api)[0])
