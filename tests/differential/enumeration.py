"""What our agent writes of MIG devices beside what NVIDIA's plugin serves, on random machines.

A machine is one of the catalogue with some of its GPUs cut into MIG devices, played by the fake
NVML. The plugin's own code finds its devices there, and the agent writes its record of the same
machine, told by the kubelet what the plugin serves. Of every resource the record has to name the
same devices, on the same GPUs, with the same memory and NUMA nodes.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from tests.differential.nvidiaplugin import VERSION, NvidiaEnumeration, Served
from tests.e2e.privatemounts import PrivateMounts
from tests.fakes.nvml import FakeNvml, MigInstance, address
from tests.fakes.nvml.products import generation
from tests.fakes.procfs import write_capabilities
from tests.fakes.sysfs import write_gpus
from topology.agent.model.hardware import NO_FAULTS, HardwareTracker
from topology.agent.model.nodecontext import NodeContext, Plugin
from topology.agent.model.record import ConditionTracker, Observation, Picture, compose
from topology.agent.probes.nvml import Nvml
from topology.agent.probes.sysfs import pci_tree
from topology.core.devices import DeviceId, GpuUuid, base_uuid
from topology.core.graph import NodeTopology
from topology.core.mig import MIG_IDS, served_devices
from topology.machines import machine
from topology.machines.mig import nominal_memory, resource_name

GPU = "nvidia.com/gpu"
# GB in the names of profiles, by machine: an eighth of a GPU with seven slices, a quarter, a half,
# all; of a GPU with four slices a quarter, a half, all. NVIDIA's MIG user guide has the names.
MACHINES = {
    "h100-pcie-1": "10 20 40 80",
    "hgx-a100-4-nps4": "5 10 20 40",
    "hgx-a100-4": "10 20 40 80",
    "dgx-a100": "5 10 20 40",
    "h100-nvl-4-bridged": "12 24 47 94",
    "hgx-h200-8": "18 35 71 141",
    "hgx-h20-8": "12 24 48 96",
    "dgx-b200": "23 45 90 180",
    "gb200-tray": "23 47 93 186",
    "a30-4-bridged": "6 12 24",
    "rtxpro6000-4": "24 48 96",
}
STRATEGIES = ("none", "single", "mixed")
PCI = "bus/pci/devices"
MOST_GPUS = 16
NOW = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile's name, its slices, and its part of a GPU's memory in eighths."""

    name: str
    slices: int
    eighths: int


def profiles_of(name: str) -> tuple[Profile, ...]:
    """Every profile of a machine's GPUs, media extensions and compute instances among them."""
    sizes = [int(word) for word in MACHINES[name].split()]
    if len(sizes) == 3:
        found = [
            Profile(f"{n}g.{gb}gb{suffix}", n, 2 * n)
            for n, gb in zip((1, 2, 4), sizes, strict=True)
            for suffix in _suffixes(name, n)
        ]
        return (*found, Profile(f"1c.2g.{sizes[1]}gb", 2, 4))
    eighth, quarter, half, everything = sizes
    return (
        Profile(f"1g.{eighth}gb", 1, 1),
        Profile(f"1g.{eighth}gb+me", 1, 1),
        Profile(f"1g.{quarter}gb", 1, 2),
        Profile(f"2g.{quarter}gb", 2, 2),
        Profile(f"3g.{half}gb", 3, 4),
        Profile(f"4g.{half}gb", 4, 4),
        Profile(f"7g.{everything}gb", 7, 8),
        Profile(f"1c.2g.{quarter}gb", 2, 2),
        Profile(f"2c.3g.{half}gb", 3, 4),
    )


def _suffixes(name: str, slices: int) -> tuple[str, ...]:
    if name.startswith("rtx"):
        return ("", "+gfx") if slices == 4 else ("", "+me", "+me.all", "+gfx", "-me")
    return ("",) if slices == 4 else ("", "+me")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with MIG devices, and how its plugin is set up.

    ``slots`` are the MIG devices of each GPU, with gaps; None for a GPU without MIG.
    """

    name: str
    topology: NodeTopology
    slots: tuple[tuple[MigInstance | None, ...] | None, ...]
    strategy: str
    sharing: Mapping[str, Any]

    @property
    def configuration(self) -> dict[str, Any]:
        """The plugin's configuration."""
        flags = {"migStrategy": self.strategy, "failOnInitError": True}
        return {"version": "v1", "flags": flags, "sharing": self.sharing}

    @property
    def family(self) -> str:
        """What kind of machine it is, for counting."""
        cut = [slots is not None for slots in self.slots]
        some = "all GPUs in slices" if all(cut) else "some" if any(cut) else "none"
        return f"{self.strategy}, {some}{', time-sliced' if self.sharing else ''}"

    def words(self) -> str:
        """The machine for people."""
        cut = [
            "whole" if slots is None else " ".join(p.profile if p else "-" for p in slots) or "none"
            for slots in self.slots
        ]
        return f"{self.name} [{' | '.join(cut)}] {self.configuration}"


def random_machine(rng: Random) -> Machine:
    """A machine of any family."""
    name = rng.choice(sorted(MACHINES))
    topology = machine(name).topology(name)
    gpus = tuple(replace(gpu, pci_bus_id=address(gpu)) for gpu in topology.gpus)
    offered = profiles_of(name)
    strategy = rng.choices(STRATEGIES, (1, 3, 5))[0]
    uniform = (rng.choice(offered),) if strategy == "single" and rng.random() < 0.8 else None
    whole = 0.0 if strategy == "single" and rng.random() < 0.8 else rng.choice((0.2, 0.5, 1.0))
    slots = tuple(
        None if rng.random() < whole else _slots(gpu.uuid, gpu.product, uniform or offered, rng)
        for gpu in gpus
    )
    return Machine(name, replace(topology, gpus=gpus), slots, strategy, _sharing(slots, rng))


def _slots(
    uuid: GpuUuid, product: str, offered: Sequence[Profile], rng: Random
) -> tuple[MigInstance | None, ...]:
    """MIG devices that fit on a GPU beside each other, in any order and with gaps."""
    most = generation(product).most_instances
    slices, eighths = most, 8
    found: list[MigInstance | None] = []
    for number in range(rng.choice((0, 2, most, 2 * most)) if rng.random() < 0.3 else 2 * most):
        profile = rng.choice(offered)
        once = "+me" in profile.name and any(p and "+me" in p.profile for p in found)
        if profile.slices > slices or profile.eighths > eighths or once:
            continue
        slices, eighths = slices - profile.slices, eighths - profile.eighths
        memory = nominal_memory(profile.name)
        assert memory is not None
        found.append(MigInstance(f"MIG-{uuid}-{number}", profile.name, memory))
    while len(found) < most and rng.random() < 0.3:
        found.insert(rng.randrange(len(found) + 1), None)
    return tuple(found)


def _sharing(
    slots: tuple[tuple[MigInstance | None, ...] | None, ...], rng: Random
) -> Mapping[str, Any]:
    """Time-slicing of some resources, as a rule of none."""
    if rng.random() < 0.7:
        return {}
    names = {GPU} | {resource_name(p.profile) for cut in slots for p in cut or () if p}
    chosen = rng.sample(sorted(names), rng.randint(1, len(names)))
    shared = [{"name": name, "replicas": rng.randint(2, 4)} for name in chosen]
    return {"timeSlicing": {"resources": shared, "renameByDefault": rng.random() < 0.3}}


class Bench:
    """The fake NVML and what the kernel shows as files, for one machine after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sys, self._driver = folder / "sys", folder / "driver"
        self._nvml = FakeNvml(folder, machine("h100-pcie-1").topology("n"))
        (self._sys / PCI).mkdir(parents=True)
        write_capabilities(self._driver, range(MOST_GPUS))

    def plugin(self, program: Path) -> NvidiaEnumeration:
        """The plugin among these files. It needs root (``tests.e2e.privatemounts.why_not``)."""
        mine = {f"/sys/{PCI}": self._sys / PCI, "/proc/driver": self._driver}
        command = PrivateMounts(self._folder, mine).command(str(program))
        environment = {**os.environ, **self._nvml.environment}
        return NvidiaEnumeration(*command, environment=environment)

    def play(self, played: Machine) -> None:
        """From now on, this is the machine."""
        for device in (self._sys / PCI).iterdir():  # the folder itself is mounted, and stays
            device.unlink()
        shutil.rmtree(self._sys / "devices", ignore_errors=True)
        write_gpus(self._sys, played.topology)
        self._nvml.replace(played.topology)
        for gpu, slots in zip(played.topology.gpus, played.slots, strict=True):
            if slots is not None:
                self._nvml.mig(gpu.index, slots)

    def record(self, played: Machine, served: Mapping[str, Sequence[Served]]) -> Picture:
        """The agent's record of the machine, where the kubelet lists what is served."""
        with self._nvml.in_process(), Nvml() as nvml:
            seen = nvml.look()
        tracker = HardwareTracker(played.topology.name)
        if (error := tracker.look(seen, NO_FAULTS, pci_tree(self._sys))) is not None:
            raise error
        observation = Observation(
            boot_id="boot",
            hardware=tracker.hardware,
            context=NodeContext({}, Plugin(VERSION, {})),
            allocatable={
                name: frozenset(DeviceId(d.id) for d in found) for name, found in served.items()
            },
        )
        return compose(observation, ConditionTracker(), NOW)


def disagreements(picture: Picture, served: Mapping[str, Sequence[Served]]) -> Iterator[str]:
    """In what the record differs from what the plugin serves, in words."""
    found = picture.topology
    assert found is not None
    if picture.unfit is not None:
        yield f"the record is not to be relied on: {picture.unfit.message}"
    names = {resource.name for resource in found.resources}
    if names != (served.keys() or {GPU}):
        yield f"the record has the resources {sorted(names)}, the plugin {sorted(served)}"
        return
    for name, devices in served.items():
        resource = found.resource(name)
        if resource is None:
            yield f"the record has no {name}"
            continue
        of_mig = any(device.id.startswith(MIG_IDS) for device in devices)
        if of_mig != (resource.strategy == "mig"):
            yield f"{name} has the strategy {resource.strategy}"
        places = served_devices(found, resource)
        ids = {base_uuid(device.id) for device in devices}
        known = set(places.position_of)
        if ids - known or (of_mig and known - ids):
            yield f"{name}: not known {sorted(ids - known)}, too many {sorted(known - ids)}"
            continue
        if len(devices) != len(ids) * resource.replicas:
            yield f"{name}: {len(devices)} devices of {len(ids)}, {resource.replicas} replicas"
        for device in devices:
            yield from _device(
                found, places.gpu_of[places.position_of[base_uuid(device.id)]], device
            )


def _device(found: NodeTopology, position: int, device: Served) -> Iterator[str]:
    gpu = found.gpus[position]
    number, _, _ = device.index.partition(":")
    if gpu.index != int(number):
        yield f"{device.id} is on GPU {gpu.index}, to the plugin on {device.index}"
    here = () if gpu.numa_node is None else (gpu.numa_node,)
    if here != device.numa:
        yield f"{device.id} is on NUMA nodes {here}, to the plugin on {device.numa}"
    memory = {part.uuid: part.memory for part in gpu.mig_instances} | {str(gpu.uuid): gpu.memory}
    if memory.get(base_uuid(device.id)) != device.memory:
        yield f"{device.id} has {memory.get(base_uuid(device.id))} bytes, not {device.memory}"


@dataclass(slots=True)
class Tally:
    """Machines of one family: how many devices the plugin served, and where it served nothing."""

    machines: int = 0
    devices: int = 0
    slices: int = 0
    idle: int = 0
    found: list[str] = field(default_factory=list)  # what differed, in words

    def row(self, name: str) -> str:
        """One line for people."""
        wrong = f", {len(self.found)} differ" if self.found else ""
        return f"{self.machines:8} {self.devices:8} {self.slices:8} {self.idle:8}  {name}{wrong}"


HEADER = "machines  devices   of MIG  refused  what the plugin serves"


def run(machines: int, seed: int, bench: Bench, plugin: NvidiaEnumeration) -> dict[str, Tally]:
    """So many random machines, by family."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for number in range(seed, seed + machines):
        played = random_machine(Random(number))
        bench.play(played)
        answer = plugin.serves(played.configuration)
        served = {} if isinstance(answer, str) else answer
        tally = tallies[played.family]
        tally.machines += 1
        tally.idle += isinstance(answer, str)
        everything = [device for found in served.values() for device in found]
        tally.devices += len(everything)
        tally.slices += sum(device.id.startswith(MIG_IDS) for device in everything)
        found = bench.record(played, served)
        tally.found += [
            f"seed {number}: {w}; {played.words()}" for w in disagreements(found, served)
        ]
    return dict(tallies)


def lines(tallies: Mapping[str, Tally]) -> Iterator[str]:
    """The table for people."""
    yield HEADER
    for name in sorted(tallies):
        yield tallies[name].row(name)
