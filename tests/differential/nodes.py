"""Random nodes, described once for both worlds.

A node is plain JSON, as the Go program reads it (``kubelet/protocol.go``). :func:`record` is what
our agent would write of it: a GPUTopology object.
"""

from itertools import combinations
from random import Random
from typing import Any

RESOURCE = "nvidia.com/gpu"
GIB = 1 << 30
THREADS = 8  # CPUs of each NUMA node: four cores with two threads
PCIE = {10: "SYS", 20: "NODE", 30: "PHB", 40: "PXB", 50: "PIX", 60: "BOARD"}
VERSIONS = {"best-effort": "0.19.3", "distributed": "0.19.3", "packed": "0.20.0", "none": None}

Node = dict[str, Any]

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
# How the plugin names NUMA nodes of devices: one each, not for all, several for some, not at all.
PLACINGS = ("one", "some-none", "several", "none")
MANAGERS = (("none", "None"), ("static", "None"), ("none", "Static"), ("static", "Static"))
CPU_OPTIONS: tuple[dict[str, str], ...] = (
    {},
    {"full-pcpus-only": "true"},
    {"distribute-cpus-across-numa": "true"},
    {"align-by-socket": "true"},
    {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"},
    {"distribute-cpus-across-cores": "true"},
    {"strict-cpu-reservation": "true"},
)


def family(node: Node) -> str:
    """What kind of node it is, for counting: policy, scope, options, managers, allocator."""
    manager = node["topologyManager"]
    words = [manager["policy"]]
    if manager["policy"] != "none":
        words.append(manager["scope"])
        words += [name for name, value in manager["options"].items() if value == "true"]
        words.append(f"numa-{node['placing']}")
    statics = [
        k
        for k, v in (("cpu", node["cpuManager"]), ("memory", node["memoryManager"]))
        if v["policy"].lower() == "static"
    ]
    words.append("+".join(statics) or "managers-none")
    return " ".join(words)


def random_node(rng: Random) -> Node:
    """A node of any family."""
    numas = rng.choice((1, 2, 2, 2, 3, 4, 4))
    count = rng.choice((2, 3, 4, 4, 6, 8, 8))
    policy = rng.choice(POLICIES) if rng.random() < 0.9 else "none"
    placing = rng.choices(PLACINGS, (6, 2, 2, 1))[0]
    allocator = rng.choices(("best-effort", "distributed", "packed", "none"), (6, 2, 1, 1))[0]
    cpu, memory = rng.choices(MANAGERS, (5, 2, 1, 2))[0]
    replicas = rng.choice((2, 3)) if allocator in ("distributed", "packed") else 1
    if replicas > 1:
        count = min(count, 4)
    cpu_options = rng.choice(CPU_OPTIONS) if cpu == "static" else {}
    if policy == "single-numa-node" and "align-by-socket" in cpu_options:
        cpu_options = {}
    options = {"prefer-closest-numa-nodes": "true"} if rng.random() < 0.3 else {}
    ids = [_placed(placing, p, count, numas, rng) for p in range(count)]
    node: Node = {
        "placing": placing,
        "numa": _numa_nodes(numas, rng, memory == "Static"),
        "topologyManager": {
            "policy": policy,
            "scope": rng.choice(("container", "pod")),
            "options": options if policy != "none" else {},
        },
        "cpuManager": {"policy": cpu, "options": cpu_options, "reserved": rng.choice("12")},
        "memoryManager": {"policy": memory},
        "resource": RESOURCE,
        "gpus": [{"uuid": f"GPU-{p}", "numa": ids[p]} for p in range(count)],
        "replicas": replicas,
        "plugin": {"policy": allocator, **_links(count, ids, rng)},
    }
    if allocator == "packed" or (allocator == "distributed" and rng.random() < 0.5):
        node["plugin"]["roundRobin"] = True
    if replicas > 1 and rng.random() < 0.3:
        node["plugin"]["refusesMany"] = True
    node["devices"] = [
        {"id": gpu["uuid"] if replicas == 1 else f"{gpu['uuid']}::{r}", "numa": gpu["numa"]}
        for gpu in node["gpus"]
        for r in range(replicas)
    ]
    return node


def _placed(placing: str, position: int, count: int, numas: int, rng: Random) -> list[int]:
    usual = [position * numas // count] if rng.random() < 0.8 else [rng.randrange(numas)]
    if placing == "none" or (placing == "some-none" and rng.random() < 0.4):
        return []
    if placing == "several" and rng.random() < 0.5:
        return sorted(rng.sample(range(numas), rng.randint(1, numas)))
    return usual


def _numa_nodes(numas: int, rng: Random, static_memory: bool) -> list[dict[str, Any]]:
    apart = {pair: rng.choice((11, 12, 16, 21, 32)) for pair in combinations(range(numas), 2)}
    return [
        {
            "id": i,
            "socket": i * min(2, numas) // numas,
            "distances": [10 if i == j else apart[min(i, j), max(i, j)] for j in range(numas)],
            "memory": 16 * GIB,
            "reservedMemory": GIB if static_memory else 0,
            "cores": [[i * THREADS + 2 * c, i * THREADS + 2 * c + 1] for c in range(THREADS // 2)],
        }
        for i in range(numas)
    ]


def _links(count: int, ids: list[list[int]], rng: Random) -> dict[str, Any]:
    """PCIe classes that fit the NUMA nodes, and NVLinks in a pattern or at random."""
    pcie = [[0] * count for _ in range(count)]
    nvlinks = [[0] * count for _ in range(count)]
    kind = rng.choice(("bridges", "mesh", "none", "random"))
    for a, b in combinations(range(count), 2):
        near = ids[a] == ids[b] != []
        pcie[a][b] = pcie[b][a] = rng.choice((20, 30, 40, 50)) if near else rng.choice((10, 20))
        joined = {
            "bridges": 4 * (a // 2 == b // 2),
            "mesh": 1 + (a + b) % 2 if (a ^ b).bit_count() == 1 else 0,
            "none": 0,
            "random": rng.choice((0, 0, 1, 2)),
        }[kind]
        nvlinks[a][b] = nvlinks[b][a] = joined
        if kind == "random" and joined and rng.random() < 0.03:
            nvlinks[b][a] = 3 - joined  # the two ends count differently
    return {"pcie": pcie, "nvlinks": nvlinks}


def has_static_managers(node: Node) -> bool:
    """Whether a manager gives pods CPUs or memory for their own."""
    return "static" in (node["cpuManager"]["policy"], node["memoryManager"]["policy"].lower())


def _cpus(node: Node) -> dict[str, Any]:
    """What the agent tells of CPUs. The kubelet reserves the lowest ones, core by core."""
    cores = [core for numa in node["numa"] for core in numa["cores"]]
    every = [cpu for core in cores for cpu in core]
    reserved = node["reservedCpus"]
    whole = [cpu for core in cores for cpu in core if not set(core) & set(reserved)]
    return {
        "allocatable": ",".join(str(cpu) for cpu in every if cpu not in reserved),
        "wholeCores": ",".join(map(str, whole)),
        "threadsPerCore": 2,
    }


def _numa_node(node: Node, numa: dict[str, Any]) -> dict[str, Any]:
    """What the agent tells of a NUMA node."""
    answer: dict[str, Any] = {"id": numa["id"], "distances": " ".join(map(str, numa["distances"]))}
    if has_static_managers(node):
        memory = numa["memory"] - numa["reservedMemory"]
        answer["cpus"] = ",".join(str(cpu) for core in numa["cores"] for cpu in core)
        answer["socket"] = numa["socket"]
        if node["memoryManager"]["policy"] == "Static":
            answer["memory"] = [{"type": "memory", "bytes": memory}]
    return answer


def record(node: Node, status: dict[str, Any]) -> dict[str, Any]:
    """The GPUTopology object that our agent would write of the node."""
    plugin, manager = node["plugin"], node["topologyManager"]
    count, replicas = len(node["gpus"]), node["replicas"]
    version = "0.20.0" if plugin.get("roundRobin") else VERSIONS[plugin["policy"]]
    allocator = {
        "policy": "any" if plugin["policy"] == "none" else plugin["policy"],
        "topologyManagerPolicy": manager["policy"],
        "topologyManagerScope": manager["scope"],
        "preferClosestNumaNodes": "prefer-closest-numa-nodes" in manager["options"],
        "fullPcpusOnly": "full-pcpus-only" in node["cpuManager"]["options"],
        "alignBySocket": "align-by-socket" in node["cpuManager"]["options"],
        "cpuManagerPolicy": node["cpuManager"]["policy"],
        "memoryManagerPolicy": node["memoryManager"]["policy"],
    }
    if version:
        allocator["pluginVersion"] = version
    links = []
    for a, b in combinations(range(count), 2):
        here, there = plugin["nvlinks"][a][b], plugin["nvlinks"][b][a]
        link = {
            "a": a,
            "b": b,
            "pcie": PCIE[plugin["pcie"][a][b]],
            "nvlinks": min(here, there),
            "via": "direct",
            "nvlinkGBps": 25.0,
        }
        if here != there:
            link["uneven"] = True
        links.append(link)
    strategy = "none" if replicas == 1 else "time-slicing"
    return {
        "apiVersion": "gpu-topology.io/v1alpha1",
        "kind": "GPUTopology",
        "metadata": {"name": "node"},
        "spec": {
            "resources": [{"name": RESOURCE, "strategy": strategy, "replicas": replicas}],
            "allocator": allocator,
            "numaNodes": [_numa_node(node, numa) for numa in node["numa"]],
            **({"cpus": _cpus(node)} if has_static_managers(node) else {}),
            "devices": [
                {
                    "index": p,
                    "uuid": gpu["uuid"],
                    "product": "NVIDIA A100-SXM4-40GB",
                    "memoryBytes": 40 * GIB,
                    **({"numaNode": gpu["numa"][0]} if gpu["numa"] else {}),
                    "topologyNodes": gpu["numa"],
                }
                for p, gpu in enumerate(node["gpus"])
            ],
            "links": links,
        },
        "status": status,
    }
