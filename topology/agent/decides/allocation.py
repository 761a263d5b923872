"""How a node's devices are chosen: what its kubelet and its device plugin are set up to do.

Nothing is assumed that would make a promise of a guess: a plugin that is not known to be NVIDIA's
may pick anything (``any``), and a Topology Manager that nobody could ask may do anything
(``unknown``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from topology.agent.decides.observed import Unseen
from topology.core.devices import DeviceId, GpuResource, base_uuid
from topology.core.graph import (
    UNKNOWN,
    AllocatorFacts,
    plugin_version,
)
from topology.core.mig import MIG, MIG_IDS

DEFAULT_RESOURCE = GpuResource()
SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"
POLICY_OPTION = re.compile(r"(?:^|-|_)allocation[-_]policy$", re.IGNORECASE)
"""The plugin's option for shared devices, by any of the names it has had."""
CONFIG_OPTION = re.compile(r"^(--)?config[-_]file$", re.IGNORECASE)
PACKED_SINCE = (0, 20)
LONGEST_VERSION = 64
"""Of the plugin, as the record holds it."""
OTHER_PROGRAMS = ("gpu-feature-discovery", "config-manager", "mps-control-daemon")
"""What else the plugin's image runs, by the words of its command."""
PREFERS_CLOSEST = "prefer-closest-numa-nodes"
FULL_CORES_ONLY = "full-pcpus-only"
ALIGN_BY_SOCKET = "align-by-socket"
"""Options of the Topology Manager and of the CPU Manager, by their names in the configuration."""
TOPOLOGY_MANAGER_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


@dataclass(frozen=True, slots=True)
class KubeletFacts:
    """The part of a KubeletConfiguration that matters here; None where nobody said."""

    topology_manager_policy: str | None = None
    topology_manager_scope: str | None = None
    cpu_manager_policy: str | None = None
    memory_manager_policy: str | None = None
    prefers_closest: bool | None = None
    full_cores_only: bool | None = None
    socket_aligned: bool | None = None

    @property
    def names_all_policies(self) -> bool:
        """Whether the policies of the Topology, the CPU and the Memory Manager are known."""
        return None not in (
            self.topology_manager_policy,
            self.cpu_manager_policy,
            self.memory_manager_policy,
        )

    @property
    def static_cpus(self) -> bool:
        """Whether pods may have exclusive CPUs."""
        return self.cpu_manager_policy == "static"

    @property
    def static_memory(self) -> bool:
        """Whether pods may have exclusive memory."""
        return self.memory_manager_policy == "Static"

    def over(self, other: KubeletFacts) -> KubeletFacts:
        """These facts, and the other's where these say nothing."""
        return KubeletFacts(
            self.topology_manager_policy or other.topology_manager_policy,
            self.topology_manager_scope or other.topology_manager_scope,
            self.cpu_manager_policy or other.cpu_manager_policy,
            self.memory_manager_policy or other.memory_manager_policy,
            other.prefers_closest if self.prefers_closest is None else self.prefers_closest,
            other.full_cores_only if self.full_cores_only is None else self.full_cores_only,
            other.socket_aligned if self.socket_aligned is None else self.socket_aligned,
        )


NOTHING_KNOWN = KubeletFacts()


@dataclass(frozen=True, slots=True)
class Plugin:
    """A container on the node that looks like NVIDIA's device plugin.

    ``options`` are its flags and environment by name, of which those matter that say how shared
    devices are handed out. ``started`` is when it did (RFC 3339), empty where it does not run.
    """

    version: str | None
    options: Mapping[str, str]
    started: str = ""


def kubelet_facts(configuration: Mapping[str, object]) -> KubeletFacts:
    """The facts of a KubeletConfiguration; what it leaves out has the kubelet's default.

    A word that we do not know is as good as none, and one for the Topology Manager may be anything.
    """

    def word(key: str, *known: str) -> str | None:
        value = configuration.get(key) or known[0]
        return value if value in known else None

    return KubeletFacts(
        word("topologyManagerPolicy", *TOPOLOGY_MANAGER_POLICIES) or UNKNOWN,
        word("topologyManagerScope", "container", "pod") or "container",
        word("cpuManagerPolicy", "none", "static"),
        word("memoryManagerPolicy", "None", "Static"),
        _option(configuration.get("topologyManagerPolicyOptions"), PREFERS_CLOSEST),
        _option(configuration.get("cpuManagerPolicyOptions"), FULL_CORES_ONLY),
        _option(configuration.get("cpuManagerPolicyOptions"), ALIGN_BY_SOCKET),
    )


def _option(options: object, name: str) -> bool | None:
    """A manager's option; None where the options are not what a kubelet reads."""
    if options is None:
        return False
    if not isinstance(options, Mapping):
        return None
    return str(options.get(name, "false")).lower() in ("1", "t", "true")


def plugin_of(image: str, words: Sequence[str], environment: Mapping[str, str]) -> Plugin | None:
    """NVIDIA's device plugin in a container, told by its image's name; None for any other.

    ``words`` are its command and arguments: the same image runs other programs, too.

    >>> plugin_of("registry.example/nvidia/k8s-device-plugin:v0.17.1-ubi9", (), {}).version
    'v0.17.1'
    """
    path, _, tag = image.partition("@")[0].rpartition(":")
    name = path if path and "/" not in tag else image.partition("@")[0]
    if name.rpartition("/")[2] != "k8s-device-plugin" or "rocm" in name:
        return None
    if any(other in word for word in words for other in OTHER_PROGRAMS):
        return None
    version = tag.split("-")[0] if path and "/" not in tag else ""
    options = dict(environment)
    for here, after in pairwise([*words, ""]):
        key, equals, value = here.partition("=")
        if key.startswith("-"):
            options[key.lstrip("-")] = value if equals else after
    known = plugin_version(version) and len(version) <= LONGEST_VERSION
    return Plugin(version if known else None, options)


def resources_of(
    allocatable: Mapping[str, Collection[DeviceId]],
    labels: Mapping[str, str],
    refuses_several: bool | None = None,
    counted: Mapping[str, int] | None = None,
) -> tuple[GpuResource, ...]:
    """The resources that serve GPUs, by what the kubelet hands out: replicas and MIG show in ids.

    ``refuses_several`` says whether the plugin refuses a container more than one shared device,
    ``counted`` how many devices the plugin serves of each resource, sick ones included.
    A node whose plugin serves nothing right now has the usual resource, with nothing to hand out.
    """
    found = []
    for name, ids in sorted(allocatable.items()):
        if not ids:
            continue
        replicas = _replicas(ids, (counted or {}).get(name, 0))
        several = refuses_several if replicas is not None else None
        if any(i.startswith(MIG_IDS) for i in ids):
            found.append(GpuResource(name, MIG, replicas or 1, several))
        elif replicas is not None:
            strategy = "mps" if labels.get(SHARING_LABEL) == "mps" else "time-slicing"
            found.append(GpuResource(name, strategy, replicas, several))
        else:
            found.append(GpuResource(name))
    return tuple(found) or (DEFAULT_RESOURCE,)


def _replicas(ids: Collection[DeviceId], counted: int) -> int | None:
    """How many devices the plugin serves for each GPU, or MIG instance; None if it shares none.

    The plugin calls one share of a GPU unhealthy for a fault of the whole GPU, and the kubelet does
    not hand that share out: so the shares of any one GPU that are handed out may be too few. But
    shares are numbered from 0, all GPUs have as many, and each has one at least that is in order.
    """
    shared = Counter(base_uuid(i) for i in ids if "::" in i)
    if not shared:
        return None
    numbers = (i.rpartition("::")[2] for i in ids)
    highest = max((int(n) for n in numbers if n.isdecimal() and len(n) < 10), default=0)
    return max(*shared.values(), highest + 1, -(-counted // len(shared)))


def lacks_shares(ids: Collection[DeviceId], served: GpuResource) -> bool:
    """Whether the kubelet does not hand out all shares of some GPU, or MIG instance."""
    found = Counter(base_uuid(i) for i in ids if "::" in i)
    return any(shares < served.replicas for shares in found.values())


def allocator_of(
    resources: Sequence[GpuResource],
    plugin: Plugin | None,
    kubelet: KubeletFacts,
    chosen: str | None = None,
    doubt: str = "",
) -> tuple[AllocatorFacts, tuple[Unseen, ...]]:
    """The allocator's facts, and which of them nobody could tell.

    ``chosen`` is an operator's word for the plugin's policy. ``doubt`` says why the plugin sees
    other links than the record has, where it does: what it prefers cannot be told then.
    """
    unseen = []
    policy = chosen or _policy(resources, plugin)
    if policy == "best-effort" and doubt:
        policy = "any"
        unseen.append(Unseen("device plugin's preference", doubt))
    if policy is None:
        cause = (
            "no container of NVIDIA's device plugin on this node"
            if plugin is None
            else "its settings are in a file of its own, or name a policy we do not know"
        )
        unseen.append(Unseen("device plugin's policy", f"{cause}: it may pick anything"))
    topology_manager = kubelet.topology_manager_policy
    if topology_manager is None:
        unseen.append(
            Unseen("Topology Manager's policy", "the kubelet's configuration could not be read")
        )
    if kubelet.cpu_manager_policy is None or kubelet.memory_manager_policy is None:
        cause = "neither the kubelet nor a file tells: pods of the class Guaranteed get no promises"
        unseen.append(Unseen("CPU and Memory Managers' policies", cause))
    facts = AllocatorFacts(
        policy or "any",
        plugin.version if plugin else None,
        topology_manager or UNKNOWN,
        kubelet.topology_manager_scope or "container",
        kubelet.cpu_manager_policy,
        kubelet.memory_manager_policy,
        kubelet.prefers_closest,
        full_cores_only=kubelet.full_cores_only,
    )
    return facts, tuple(unseen)


def _policy(resources: Sequence[GpuResource], plugin: Plugin | None) -> str | None:
    """What the plugin does: ``best-effort`` with whole GPUs alone, else as it was told.

    MIG instances that are not shared do not matter: it has no preference among them.
    """
    if plugin is None:
        return None
    choosing = [r for r in resources if r.strategy != MIG or r.replicas > 1]
    if not choosing:
        return "distributed"
    kinds = {r.strategy == "none" for r in choosing}
    if kinds == {True}:
        return "best-effort"
    if len(kinds) > 1:
        return None  # one node, two allocators: no one policy speaks for both
    version = plugin_version(plugin.version)
    if version is not None and version < PACKED_SINCE:
        return "distributed"
    for name, value in plugin.options.items():
        if POLICY_OPTION.search(name):
            return value if value in ("distributed", "packed") else None
    told_by_file = any(CONFIG_OPTION.match(n) and v for n, v in plugin.options.items())
    return None if told_by_file else "distributed"
