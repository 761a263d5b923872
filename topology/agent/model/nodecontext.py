"""What the API server, the kubelet and the device plugin's container say about the node.

The module assumes nothing that would turn a guess into a guarantee. Nothing is known of a plugin
that is not NVIDIA's. A Topology Manager whose policy cannot be read may do anything (``unknown``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from topology.agent.model.observations import CountedDevices, Unseen
from topology.agent.model.podentries import NodePod
from topology.core.devices import PodUid
from topology.core.graph import UNKNOWN, plugin_version

LONGEST_VERSION = 64  # characters of the plugin's version in a record
# Words in the commands of the other programs in the plugin's image.
OTHER_PROGRAMS = ("gpu-feature-discovery", "config-manager", "mps-control-daemon")
# Options of the Topology Manager and the CPU Manager, as a kubelet's configuration names them.
PREFERS_CLOSEST = "prefer-closest-numa-nodes"
FULL_CORES_ONLY = "full-pcpus-only"
ALIGN_BY_SOCKET = "align-by-socket"
TOPOLOGY_MANAGER_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
NODE = "Node"  # the entry in the list of unseen facts if the Node could not be read


@dataclass(frozen=True, slots=True)
class KubeletConfig:
    """The part of a KubeletConfiguration that matters here; None means that it is not known."""

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

    @property
    def static(self) -> bool:
        """Whether pods may have exclusive CPUs or memory."""
        return self.static_cpus or self.static_memory

    def over(self, other: "KubeletConfig") -> "KubeletConfig":
        """Return this configuration, completed by the other one."""
        return KubeletConfig(
            self.topology_manager_policy or other.topology_manager_policy,
            self.topology_manager_scope or other.topology_manager_scope,
            self.cpu_manager_policy or other.cpu_manager_policy,
            self.memory_manager_policy or other.memory_manager_policy,
            other.prefers_closest if self.prefers_closest is None else self.prefers_closest,
            other.full_cores_only if self.full_cores_only is None else self.full_cores_only,
            other.socket_aligned if self.socket_aligned is None else self.socket_aligned,
        )


NOTHING_KNOWN = KubeletConfig()


@dataclass(frozen=True, slots=True)
class Plugin:
    """A container on the node that looks like NVIDIA's device plugin."""

    version: str | None
    # Flags and environment by name. The ones that matter say how shared devices are handed out.
    options: Mapping[str, str]
    started: str = ""  # when it started (RFC 3339); empty if it does not run


def kubelet_config(configuration: Mapping[str, object]) -> KubeletConfig:
    """Return the parts of a KubeletConfiguration that matter.

    A missing key has the kubelet's default. An unknown value counts as None, and an unknown
    Topology Manager policy as ``unknown``.
    """

    def word(key: str, *known: str) -> str | None:
        value = configuration.get(key) or known[0]
        return value if value in known else None

    return KubeletConfig(
        word("topologyManagerPolicy", *TOPOLOGY_MANAGER_POLICIES) or UNKNOWN,
        word("topologyManagerScope", "container", "pod") or "container",
        word("cpuManagerPolicy", "none", "static"),
        word("memoryManagerPolicy", "None", "Static"),
        _option(configuration.get("topologyManagerPolicyOptions"), PREFERS_CLOSEST),
        _option(configuration.get("cpuManagerPolicyOptions"), FULL_CORES_ONLY),
        _option(configuration.get("cpuManagerPolicyOptions"), ALIGN_BY_SOCKET),
    )


def _option(options: object, name: str) -> bool | None:
    """Return a manager's option; None if the options are no mapping.

    A kubelet could not read such options.
    """
    if options is None:
        return False
    if not isinstance(options, Mapping):
        return None
    return str(options.get(name, "false")).lower() in ("1", "t", "true")


def plugin_of(image: str, words: Sequence[str], environment: Mapping[str, str]) -> Plugin | None:
    """Return NVIDIA's device plugin, recognised by its image's name; None for any other container.

    ``words`` are the container's command and arguments, since the same image also runs other
    programs.

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


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the API server and the kubelet's configuration say at one time."""

    pods: Mapping[PodUid, NodePod]
    plugin: Plugin | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    kubelet: KubeletConfig = NOTHING_KNOWN
    synced: bool = True  # whether these are all pods of the node
    has_api_server: bool = True  # without one, no UID of a pod ever becomes known
    unseen: tuple[Unseen, ...] = ()
    pods_version: str = ""  # the pods are at least as new as this resourceVersion
    deletions: int = 0  # how many pods with GPU limits have been deleted from the API server
    counted: CountedDevices | None = None  # None if the Node could not be read
