"""What pods' own claims get, as predicted and as kube-scheduler's own allocator gives it.

A question is a node as in :mod:`.claims`, with NICs of another driver on some, and one to three
claims at random: counts and ``All``, ``firstAvailable``, ``matchAttribute``, and selectors over
model, memory, PCI address, PCIe root and NUMA node.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.differential.claims import (
    DRIVER,
    NODE,
    OTHER,
    SELECTORS,
    Json,
    cluster_of,
    random_question,
)
from tests.differential.nvidiaplugin import Answering
from topology.core.devices import DeviceId
from topology.core.graph import NodeTopology
from topology.core.placement import Reason, Rejection

COMMON = "resource.kubernetes.io"
NICS = {
    "metadata": {"name": "nics"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{OTHER}"'}}]},
}


@dataclass(slots=True)
class OwnTally:
    """How well the allocator's answers were predicted."""

    questions: int = 0
    exact: int = 0  # the GPUs that came
    refused: int = 0  # no devices came, and none were foreseen
    unpredicted: int = 0  # nothing was said
    given_up: int = 0  # the allocator took longer than a second
    found: list[str] = field(default_factory=list)  # others came than was said

    @property
    def line(self) -> str:
        """One line for people."""
        return (
            f"{self.questions} pods with claims of their own: the GPUs of {self.exact} foreseen "
            f"exactly, {self.refused} refused by both, nothing said of {self.unpredicted}, "
            f"the allocator gave up on {self.given_up}, "
            f"{len(self.found)} not foreseen"
        )


def random_claims(rng: Random, topology: NodeTopology, *, nics: bool) -> Iterator[Json]:
    """What one to three claims say."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        requests = [_request(rng, topology, f"r{n}") for n in range(rng.choice((1, 1, 1, 2)))]
        if nics and rng.random() < 0.7:
            nic = {"deviceClassName": "nics", "allocationMode": "ExactCount", "count": 1}
            requests.insert(rng.randint(0, 1), {"name": "nic", "exactly": nic})
        constraints = []
        if rng.random() < 0.35:
            names = (f"{COMMON}/pcieRoot", f"{DRIVER}/numaNode", f"{DRIVER}/productName")
            concerned = [_name(rng, r) for r in requests] if rng.random() < 0.4 else []
            constraint: Json = {"matchAttribute": names[0] if nics else rng.choice(names)}
            constraints.append({**constraint, **({"requests": concerned} if concerned else {})})
        yield {"requests": requests, "constraints": constraints}


def _name(rng: Random, request: Json) -> str:
    """A request, or one of its alternatives."""
    inside = [each["name"] for each in request.get("firstAvailable", ())]
    name = str(request["name"])
    return f"{name}/{rng.choice(inside)}" if inside and rng.random() < 0.5 else name


def _request(rng: Random, topology: NodeTopology, name: str) -> Json:
    if rng.random() < 0.5:
        return {"name": name, "exactly": _alternative(rng, topology)}
    some = [{"name": f"s{n}", **_alternative(rng, topology)} for n in range(rng.randint(1, 8))]
    return {"name": name, "firstAvailable": some}


def _alternative(rng: Random, topology: NodeTopology) -> Json:
    wanted: Json = {"deviceClassName": "gpus"}
    selectors = [_selector(rng, topology) for _ in range(rng.choice((0, 0, 1, 2)))]
    if selectors:
        wanted["selectors"] = [{"cel": {"expression": each}} for each in selectors]
    if rng.random() < 0.05:
        return {**wanted, "allocationMode": "All"}
    return {**wanted, "allocationMode": "ExactCount", "count": rng.choice((1, 1, 2, 2, 3, 4))}


def _selector(rng: Random, topology: NodeTopology) -> str:
    own, common = f'device.attributes["{DRIVER}"]', f'device.attributes["{COMMON}"]'
    gpus = topology.gpus
    buses = [gpu.pci_bus_id or "" for gpu in rng.sample(gpus, rng.randint(1, len(gpus)))]
    memory = rng.choice(("1Gi", "24Gi", "40Gi", "80Gi", str(gpus[0].memory)))
    simple = (
        lambda: f"{common}.pciBusID in {json.dumps(buses)}",
        lambda: f'{common}.pcieRoot == "pci{rng.randint(0, 3)}"',
        lambda: f"{own}.numaNode == {rng.randint(0, 1)}",
        lambda: f"{own}.numaNode <= 0 && has({own}.uuid)",
        lambda: f"{own}.productName.contains({json.dumps(rng.choice(gpus).product[:8])})",
        lambda: f'device.capacity["{DRIVER}"].memory.compareTo(quantity("{memory}")) >= 0',
        lambda: f'!device.capacity["{DRIVER}"].memory.isLessThan(quantity("{memory}"))',
        lambda: f'"nothing" in {own} || {own}.type == "gpu"',
    )
    terms = [rng.choice(simple)() for _ in range(rng.choice((1, 1, 2)))]
    if len(terms) == 1:
        return terms[0]
    joined = rng.choice((" && ", " || ")).join(f"({term})" for term in terms)
    return f"!({joined})" if rng.random() < 0.2 else joined


def compare_own(rng: Random, allocator: Answering, tally: OwnTally) -> None:
    """Ask both about one pod."""
    topology, asked = random_question(rng)
    asked["classes"][0]["spec"]["selectors"] = [{"cel": {"expression": SELECTORS[0]}}]
    asked["allocated"] = asked["allocated"][: rng.choice((0, 0, 1, 2, 9))]
    nics = rng.random() < 0.3
    if nics:
        devices = [
            {"name": f"nic-{n}", "attributes": {f"{COMMON}/pcieRoot": {"string": f"pci{n}"}}}
            for n in rng.sample(range(4), 4)
        ]
        pool = {"name": "nics", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": OTHER, "nodeName": NODE, "pool": pool, "devices": devices}
        asked["slices"].append({"metadata": {"name": "nics"}, "spec": spec})
    asked["classes"].append(NICS)
    asked["claims"] = list(random_claims(rng, topology, nics=nics))
    answer: Any = allocator.answer({**asked, "counts": []})
    given = [each["device"] for each in answer["devices"] or () if each["driver"] == DRIVER]
    cluster = cluster_of(topology, asked)
    names = [f"claim-{number}" for number in range(len(asked["claims"]))]
    predicted = cluster.foresees("ns", names)(cluster.node_info(NODE))
    tally.questions += 1
    if "deadline" in answer.get("error", ""):
        tally.given_up += 1
        return
    if isinstance(predicted, Rejection) and predicted.reason is Reason.UNDECIDED:
        tally.unpredicted += 1
        return
    by_uuid = {DeviceId(gpu.uuid): f"gpu-{gpu.index}" for gpu in topology.gpus}
    predicted_devices = (
        [] if isinstance(predicted, Rejection) else [by_uuid[uuid] for uuid in predicted]
    )
    if predicted_devices == given:
        tally.exact += bool(given)
        tally.refused += not given
    else:
        tally.found.append(
            f"{given} came, {predicted_devices} was foreseen, {answer.get('error')}, of {asked}"
        )


def run_own(questions: int, seed: int, program: Path) -> OwnTally:
    """So many random pods."""
    tally = OwnTally()
    with Answering(str(program)) as allocator:
        for number in range(questions):
            compare_own(Random(seed + number), allocator, tally)
    return tally
