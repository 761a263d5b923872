"""Our model of nodes with Dynamic Resource Allocation beside kube-scheduler's own allocator.

A question is a node with random ResourceSlices, of which some devices are allocated, and a pod that
asks for a number of GPUs in each of its containers. The allocator gets the objects as they are; the
extender gets them through the sinks of its watches. The GPUs that the allocator gives to each
container have to be the set that is foreseen.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from scheduler_extender.files.claimfile import claim_spec
from scheduler_extender.kube.dra import DraNodes
from scheduler_extender.kube.sinks import RecordSink
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import Offer
from scheduler_extender.state.node.objects import NodeObject
from tests.differential.nvidiaplugin import Answering
from topology import codec
from topology.core.admission import container_sets
from topology.core.alternatives import alternatives, grouped
from topology.core.devices import Gpu, NodeName
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.patterns import subset_masks
from topology.core.placement import satisfies
from topology.core.report import Report
from topology.core.requests import Constraints, Pattern, Role
from topology.machines import machine

MACHINES = ("a100-pcie-4-bridged", "dgx1-v100", "l40s-8", "hgx-h100-8", "rtx4090-8", "dgx2")
NODE = NodeName("node")
DRIVER = "gpu.nvidia.com"
OTHER = "a-driver.example.com"
SELECTORS = (
    f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'",
    f'device.attributes["{DRIVER}"].type == "gpu"&&device.driver=="{DRIVER}"',
    f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu' && "
    f"device.attributes['{DRIVER}'].numaNode == 0",
)
Json = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """How well the allocator's answers were predicted."""

    questions: int = 0
    exact: int = 0  # one set was foreseen, and came
    refused: int = 0  # too few devices, to both
    unusable: int = 0  # the node's objects are not followed
    found: list[str] = field(default_factory=list)  # what was not foreseen, in words

    @property
    def line(self) -> str:
        """One line for people."""
        return (
            f"{self.questions} claims: {self.exact} foreseen exactly, {self.refused} refused by "
            f"both, {self.unusable} on nodes that are not followed, {len(self.found)} not foreseen"
        )


def random_question(rng: Random, machines: Sequence[str] = MACHINES) -> tuple[NodeTopology, Json]:
    """A node as its agent has it, and what the allocator is asked."""
    topology = machine(rng.choice(machines)).topology(NODE)
    devices = [_device(gpu, rng) for gpu in topology.gpus]
    devices += [_part(number) for number in range(rng.choice((0, 0, 3)))]
    rng.shuffle(devices)
    slices = list(_slices(devices, rng))
    rng.shuffle(slices)
    published = dict.fromkeys(
        (spec["driver"], spec["pool"]["name"], device["name"])
        for spec in (each["spec"] for each in slices)
        for device in spec["devices"]
    )
    taken = rng.sample(list(published), rng.randint(0, len(published) - 1))
    allocated = [dict(zip(("driver", "pool", "device"), each, strict=True)) for each in taken]
    spec: Json = {
        "selectors": [{"cel": {"expression": rng.choice(SELECTORS)}}],
        "extendedResourceName": "nvidia.com/gpu",
    }
    counts = [rng.randint(1, 4) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    return topology, {
        "node": NODE,
        "slices": slices,
        "classes": [{"metadata": {"name": "gpus"}, "spec": spec}],
        "allocated": allocated,
        "counts": counts,
    }


def _device(gpu: Gpu, rng: Random) -> Json:
    attributes: Json = {
        "type": {"string": "gpu"},
        "uuid": {"string": gpu.uuid},
        "productName": {"string": gpu.product},
        "numaNode": {"int": gpu.numa_node or 0},
        "resource.kubernetes.io/pciBusID": {"string": gpu.pci_bus_id},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci{gpu.index // 2}"},
    }
    taints = [{"key": "sick", "effect": rng.choice(("NoSchedule", "NoExecute", "None"))}]
    return {
        "name": f"gpu-{gpu.index}",
        "attributes": attributes,
        "capacity": {"memory": {"value": str(gpu.memory)}},
        **({"taints": taints} if rng.random() < 0.1 else {}),
    }


def _part(number: int) -> Json:
    """A device of another type, which no class here selects."""
    attributes = {"type": {"string": "mig"}, "uuid": {"string": f"MIG-{number}"}}
    return {"name": f"mig-{number}", "attributes": {**attributes, "numaNode": {"int": 0}}}


def _slices(devices: list[Json], rng: Random) -> Iterator[Json]:
    """The devices in one or two pools of one or more slices, with those of an old generation and of
    another driver."""
    cut = rng.randint(0, len(devices)) if rng.random() < 0.3 else len(devices)
    pools = [(name, part) for name, part in (("b", devices[:cut]), ("a", devices[cut:])) if part]
    for pool, part in pools:
        size = rng.randint(1, len(part)) if rng.random() < 0.4 else len(part)
        parts = [part[i : i + size] for i in range(0, len(part), size)]
        names = rng.sample(range(100), len(parts))
        for name, some in zip(names, parts, strict=True):
            yield _slice(f"{pool}-{name}", DRIVER, pool, 2, len(parts), some)
        if rng.random() < 0.2:
            yield _slice(f"{pool}-old", DRIVER, pool, 1, 1, part[:1])
    if rng.random() < 0.2:
        count = rng.choice((1, 1, 2))  # of a pool that is not complete nothing comes
        yield _slice("other", OTHER, "a", 1, count, [{"name": "nic", "attributes": {}}])


def _slice(name: str, driver: str, pool: str, age: int, count: int, devices: list[Json]) -> Json:
    of_pool = {"name": pool, "generation": age, "resourceSliceCount": count}
    spec = {"driver": driver, "nodeName": NODE, "pool": of_pool, "devices": devices}
    return {"metadata": {"name": name}, "spec": spec}


def cluster_of(topology: NodeTopology, asked: Mapping[str, Any]) -> Cache:
    """The extender's picture of the node, and of its claims that have no devices yet."""
    cluster = Cache(lambda: 0.0, Settings())
    cluster.put_node(NODE, NodeObject(exists=True, advertises_none=True))
    nodes = DraNodes(cluster)
    record = codec.encode(replace(topology, resources=()), Report("boot", 1))
    RecordSink(cluster, lambda: 0.0, nodes).apply(_raw(record))
    claim = {
        "metadata": {"namespace": "ns", "name": "others", "uid": "others"},
        "status": {"allocation": {"devices": {"results": asked["allocated"]}}},
    }
    own = [
        {"metadata": {"namespace": "ns", "name": f"claim-{number}"}, "spec": {"devices": devices}}
        for number, devices in enumerate(asked.get("claims", ()))
    ]
    objects: tuple[list[Json], ...] = (asked["classes"], asked["slices"], [claim, *own], [])
    for sink, some in zip(nodes.sinks.values(), objects, strict=True):
        sink.replace([_raw(each) for each in some], "1")
    return cluster


def _offer(topology: NodeTopology, asked: Mapping[str, Any]) -> Any:
    """What the extender takes the node for."""
    return cluster_of(topology, asked).node_info(NODE).offer("nvidia.com/gpu")


def _raw(obj: Mapping[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(obj).encode())


def compare(rng: Random, allocator: Answering, tally: Tally) -> None:
    """Ask both about one node."""
    topology, asked = random_question(rng)
    answer = allocator.answer(asked)
    tally.questions += 1
    offer = _offer(topology, asked)
    given = [each["device"] for each in answer["devices"] or ()]
    if answer.get("error"):
        tally.found.append(f"{answer['error']}, over {asked}")
    elif not isinstance(offer, Offer):
        if given:
            tally.unusable += 1
        else:
            tally.refused += 1  # no device is of the class
    elif offer.availability.devices_left < sum(asked["counts"]):
        tally.refused += 1
        if given:
            tally.found.append(f"{given} came, too few seem free, over {asked}")
    else:
        counts = tuple((Role.APP, count) for count in asked["counts"])
        predicted = container_sets(offer.kubelet, offer.availability.free, counts)
        came, at = [], 0
        for count in asked["counts"]:
            gpus = given[at : at + count]
            at += count
            came.append(sum(1 << int(name.removeprefix("gpu-")) for name in gpus))
        if predicted != tuple((gpus,) for gpus in came):
            tally.found.append(f"{given} came, {predicted} was foreseen, over {asked}")
        else:
            tally.exact += 1


def run(questions: int, seed: int, program: Path) -> Tally:
    """So many random questions."""
    tally = Tally()
    with Answering(str(program)) as allocator:
        for number in range(questions):
            compare(Random(seed + number), allocator, tally)
    return tally


CONSTRAINTS = (
    Constraints(link=LinkKind.NVLINK),
    Constraints(link=LinkKind.NVLINK, pattern=Pattern.CONNECTED),
    Constraints(same_numa=True),
    Constraints(min_nvlinks=2),
    Constraints(),
)


@dataclass(slots=True)
class CompiledTally:
    """What a compiled claim is worth beside a plain request, where some free set would do."""

    questions: int = 0
    by_plain: int = 0  # the next devices would do
    by_claim: int = 0  # the claim got devices
    found: list[str] = field(default_factory=list)  # devices that do not do, or none that were due

    @property
    def line(self) -> str:
        """One line for people."""
        return (
            f"{self.questions} nodes with a free set that would do: a plain request gets one on "
            f"{self.by_plain}, a compiled claim on {self.by_claim}, {len(self.found)} wrong"
        )


def compiled_claim(rng: Random, allocator: Answering, tally: CompiledTally, *, pairs: bool) -> None:
    """Ask about one node with the claim that ``gpu-topology claim`` would write; with ``pairs`` for
    a linked pair of a node of such pairs."""
    topology, asked = random_question(rng, MACHINES[:1] if pairs else MACHINES)
    asked["classes"][0]["spec"]["selectors"] = [{"cel": {"expression": SELECTORS[0]}}]
    count, wanted = (2, CONSTRAINTS[0]) if pairs else (rng.randint(1, 4), rng.choice(CONSTRAINTS))
    offer = _offer(topology, asked)
    if not isinstance(offer, Offer):
        return
    free = offer.availability.free
    good = [
        mask
        for mask in subset_masks(free, count).tolist()
        if satisfies(topology.shape, wanted, mask)
    ]
    if not good:
        return
    tally.questions += 1
    plain = offer.kubelet.outcomes(free, count).sets
    tally.by_plain += plain is not None and plain[0] in good
    found = alternatives(grouped([topology]), count, wanted)
    asked["claims"] = [claim_spec(found.sets, count, "gpus")["devices"]]
    answer = allocator.answer({**asked, "counts": []})
    given = sum(1 << int(each["device"].removeprefix("gpu-")) for each in answer["devices"] or ())
    ((_, possible, named),) = found.machines
    if answer.get("error") or (given and given not in good) or (not given and named == possible):
        tally.found.append(f"{answer} for {count} with {wanted.text}, over {asked}")
    tally.by_claim += given != 0


def run_compiled(questions: int, seed: int, program: Path, *, pairs: bool = False) -> CompiledTally:
    """So many random nodes, or nodes of linked ``pairs``."""
    tally = CompiledTally()
    with Answering(str(program)) as allocator:
        for number in range(questions):
            compiled_claim(Random(seed + number), allocator, tally, pairs=pairs)
    return tally
