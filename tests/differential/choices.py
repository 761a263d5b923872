"""Our model of shared GPUs and MIG instances beside NVIDIA's own code, over random states.

A state is a node, how its plugin shares, and which devices are free. The plugin is asked what it
would hand out, and the answer has to be one that :mod:`topology.core` foresees: its sets are read
from our record of the node, and nothing of the plugin's code is in them.

Where we promise something of an answer, every answer has to keep it, and where we say that a wish
cannot be met, none may meet it.

The plugin's release of ``plugin/go.mod`` has ``distributed`` alone; ``packed`` came with v0.20. The
run takes a checkout of a later release, too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from tests.differential.nvidiaplugin import VERSION, NvidiaPlugin
from topology.agent.model.devicepolicy import PACKED_SINCE
from topology.core.admission import SEVERAL, DeviceManager, admissions, device_manager_of
from topology.core.allocators import Call
from topology.core.availability import Availability
from topology.core.devices import GpuResource, base_uuid
from topology.core.devicesets import DeviceSet, pack
from topology.core.graph import AllocatorConfig, NodeTopology, plugin_version
from topology.core.mig import ServedDevices, served_devices
from topology.core.placement import Verdict, assess
from topology.core.requests import Constraints, Role, gpu_request
from topology.machines import machine
from topology.machines.mig import cut

MACHINES = ("l40s-4", "l40s-8", "dgx1-v100", "hgx-h100-4", "dgx-a100", "h100-pcie-1")
# Nodes of one profile, for the strategy ``single``.
SLICED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("dgx-a100", ("1g.5gb",) * 7),
    ("hgx-a100-4", ("3g.20gb",) * 2),
    ("hgx-a100-4", ("2g.10gb",) * 3),
    ("a30-4-bridged", ("1g.6gb",) * 4),
    ("h100-pcie-1", ("1g.10gb",) * 7),
)
# Nodes of several profiles, for the strategy ``mixed``.
MIXED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("dgx-a100", ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")),
    ("hgx-a100-4", ("4g.20gb", "1g.5gb", "1g.5gb", "1g.5gb")),
)
KINDS = ("time-slicing", "mps", "mig single", "mig mixed", "mig single, time-sliced")
POLICIES = ("distributed", "packed")
CONSTRAINTS = {"same-gpu": Constraints(same_gpu=True), "spread-gpus": Constraints(spread_gpus=True)}
QUESTIONS = 10  # of one node, each about another set of free devices
TIMES = 4  # Ties fall at random in the plugin, so each question is asked so often
MOST = 6  # devices that a container asks for


@dataclass(frozen=True, slots=True)
class State:
    """A node as its record has it, and the resource that is asked for."""

    family: str
    topology: NodeTopology
    served: GpuResource

    @property
    def kubelet(self) -> DeviceManager:
        """How the node hands out, to our model."""
        return device_manager_of(self.topology, self.served)

    @property
    def places(self) -> ServedDevices:
        """The devices by position."""
        return served_devices(self.topology, self.served)

    def units(self) -> list[tuple[str, str]]:
        """What the plugin serves: ids, and its indices of them."""
        if self.served.strategy != "mig":
            return [(gpu.uuid, str(gpu.index)) for gpu in self.topology.gpus]
        return [
            (part.uuid, f"{gpu.index}:{number}")
            for gpu in self.topology.gpus
            for number, part in enumerate(gpu.mig_instances)
            if part.uuid in self.places.position_of
        ]

    def place(self, device: str) -> tuple[int, str]:
        """The driver's number of the GPU that a device is on, and the device without its replica
        number."""
        uuid = base_uuid(device)
        return int(next(at for unit, at in self.units() if unit == uuid).partition(":")[0]), uuid

    def sharing(self) -> str:
        """The plugin's word for how it shares."""
        if self.served.strategy == "mig":
            return "none" if self.served.replicas == 1 else "time-slicing"
        return self.served.strategy

    def devices(self) -> list[str]:
        """Everything that the plugin advertises as this resource."""
        replicas = self.served.replicas
        ids = [uuid for uuid, _ in self.units()]
        return ids if replicas == 1 else [f"{uuid}::{r}" for uuid in ids for r in range(replicas)]

    def pool(self, ids: tuple[str, ...] | list[str]) -> DeviceSet:
        """Devices as our model counts them."""
        found = Counter(self.places.position_of[base_uuid(device)] for device in ids)
        kubelet = self.kubelet
        return pack((found[p] for p in range(kubelet.shape.size)), kubelet.width)


@dataclass(slots=True)
class Tally:
    """How well the plugin's answers were predicted.

    ``single`` counts questions with one predicted answer, ``refused`` those that were refused,
    ``promised`` wishes that the model promised.
    """

    questions: int = 0
    single: int = 0
    refused: int = 0
    promised: int = 0
    found: list[str] = field(default_factory=list)  # what was not foreseen, in words

    def row(self, name: str) -> str:
        """One line for people."""
        single = 100 * self.single / max(1, self.questions)
        wrong = f", {len(self.found)} not foreseen" if self.found else ""
        counts = f"{self.questions:7} {single:5.1f} % {self.refused:7} {self.promised:8}"
        return f"{counts}  {name}{wrong}"


HEADER = "  asked  single refused promised  what is shared"


def families(version: str) -> tuple[str, ...]:
    """The kinds of nodes, by what a release of the plugin offers."""
    if not _has_policies(version):
        return KINDS
    return tuple(f"{kind}, {policy}" for kind in KINDS for policy in POLICIES)


def _has_policies(version: str) -> bool:
    return (plugin_version(version) or ()) >= PACKED_SINCE


def random_state(rng: Random, version: str = VERSION) -> State:
    """A node of any family."""
    family = rng.choice(families(version))
    policy = next((policy for policy in POLICIES if family.endswith(policy)), "distributed")
    config = AllocatorConfig(policy, version, "none", "container")
    refuses = rng.random() < 0.3
    if not family.startswith("mig"):
        name, replicas = rng.choice(MACHINES), rng.randint(2, 8)
        node = replace(machine(name).topology(name), allocator=config)
        kind = family.partition(",")[0]
        served = GpuResource("nvidia.com/gpu", kind, replicas, refuses_several=refuses)
        return State(family, replace(node, resources=(served,)), served)
    strategy = "mixed" if "mixed" in family else "single"
    name, profiles = rng.choice(MIXED if strategy == "mixed" else SLICED)
    replicas = rng.randint(2, 4) if "sliced" in family else 1
    bare = replace(machine(name).topology(name), allocator=config)
    if replicas > 1:  # we follow at most so many instances that are time-sliced
        profiles = profiles[:2]
    node = cut(bare, profiles, strategy=strategy, replicas=replicas)
    node = replace(
        node, resources=tuple(replace(one, refuses_several=refuses) for one in node.resources)
    )
    return State(family, node, rng.choice([one for one in node.resources if one.strategy == "mig"]))


def compare(state: State, plugin: NvidiaPlugin, rng: Random, tally: Tally) -> None:
    """Ask about a node with random devices free, and hold the answers against the model's."""
    served, config = state.served, state.topology.allocator
    plugin.begin(
        state.units(),
        state.sharing(),
        served.replicas,
        fails_many=bool(served.refuses_several),
        policy=config.policy if _has_policies(config.plugin_version or "") else "",
    )
    devices = state.devices()
    for _ in range(QUESTIONS):
        available = rng.sample(devices, rng.randint(1, len(devices)))
        size = rng.randint(1, min(MOST, len(available)))
        required: list[str] = []
        if rng.random() < 0.3:  # devices that an init container of the pod leaves behind
            required = rng.sample(available, rng.randint(0, size - 1))
        tally.questions += 1
        for words in _not_predicted(state, plugin, available, required, size, tally):
            tally.found.append(f"{state.family} on {state.topology.name}, {size} of {words}")


def _not_predicted(
    state: State,
    plugin: NvidiaPlugin,
    available: list[str],
    required: list[str],
    size: int,
    tally: Tally,
) -> Iterator[str]:
    refused = plugin.refuses(available[:size])
    hazards = admissions(state.kubelet, state.pool(available), ((Role.APP, size),)).hazards
    if refused != (SEVERAL in hazards):
        yield f"{available}: refused {refused}, hazards {hazards}"
    if refused:
        tally.refused += 1
        return
    sets = predicted(state, available, required, size)
    answers = [plugin.preferred(available, required, size) for _ in range(TIMES)]
    pools = {state.pool(answer) for answer in answers}
    if any(len(set(answer)) != size for answer in answers):
        yield f"{available}: the plugin chose {answers}"
    if sets is None:
        return
    tally.single += len(sets) == 1
    if pools - set(sets):
        yield f"{available} with {required}: the plugin chose {answers}"
    if not required and size > 1:  # one device meets every wish
        yield from _broken(state, available, answers, tally)


def _broken(
    state: State, available: list[str], answers: list[tuple[str, ...]], tally: Tally
) -> Iterator[str]:
    """Wishes of which the model says what the plugin's answers do not bear out."""
    gpus = [[gpu for gpu, _ in map(state.place, answer)] for answer in answers]
    now = Availability(state.pool(available), width=state.kubelet.width)
    for wish, wanted in CONSTRAINTS.items():
        request = gpu_request(len(answers[0]), wanted)
        verdict = assess(state.kubelet, now, request).verdict
        met = [len(set(on)) == (1 if wanted.same_gpu else len(on)) for on in gpus]
        tally.promised += verdict is Verdict.GUARANTEED
        if verdict is Verdict.GUARANTEED and not all(met):
            yield f"{available}: {wish} was promised, and the plugin chose {answers}"
        if verdict in (Verdict.NOT_NOW, Verdict.NEVER) and any(met):
            yield f"{available}: {wish} is {verdict.value}, and the plugin chose {answers}"


def predicted(
    state: State, available: list[str], required: list[str], size: int
) -> tuple[DeviceSet, ...] | None:
    """Every answer that our model expects; None where they are too many to list."""
    kubelet, free = state.kubelet, state.pool(available)
    if not required:
        return admissions(kubelet, free, ((Role.APP, size),)).sets
    version = plugin_version(state.topology.allocator.plugin_version or "")
    call = Call(kubelet.shape, free, size, state.pool(required), kubelet.width, version)
    return kubelet.allocator.outcomes(call).sets


def run(
    questions: int, seed: int, plugin: NvidiaPlugin, version: str = VERSION
) -> dict[str, Tally]:
    """At least so many questions about random nodes, by family. ``version`` is the plugin's."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    number = seed
    while sum(tally.questions for tally in tallies.values()) < questions:
        rng = Random(number)
        state = random_state(rng, version)
        compare(state, plugin, rng, tallies[state.family])
        number += 1
    return dict(tallies)


def lines(tallies: dict[str, Tally]) -> Iterator[str]:
    """The table for people."""
    yield HEADER
    for name in sorted(tallies):
        yield tallies[name].row(name)
