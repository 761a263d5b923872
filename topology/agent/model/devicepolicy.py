"""How a node's devices are chosen, and what the device plugin does with shared ones.

The module assumes nothing that would turn a guess into a guarantee. A plugin that is not known to
be NVIDIA's may pick any devices (``any``).

The option ``failRequestsGreaterThanOne`` decides whether NVIDIA's plugin gives a container several
shares of GPUs. This option is in a configuration file of the plugin's own, and no label or flag
shows it. So :class:`SharesTracker` learns it from what the plugin has done:

* a container that holds several shares shows that the plugin gives them;
* a pod that was refused with :data:`REFUSED` shows that the plugin refuses them.

Either counts if the pod started after the plugin did. The configuration may change when the plugin
restarts, and when its config-manager takes another file because of the Node's label. Then
everything learnt before is forgotten. If the plugin did both, the later one counts.

The result is in the record, with the plugin's start and the label that it holds for. So a restarted
agent knows it, too. It stays there after the label has changed. Then the agent knows that the
plugin did part of this under another configuration.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from topology.agent.model.holders import Holders
from topology.agent.model.nodecontext import NODE, KubeletConfig, NodeContext, Plugin
from topology.agent.model.observations import Unseen
from topology.core.devices import DeviceId, GpuResource, base_uuid
from topology.core.graph import (
    UNKNOWN,
    AllocatorConfig,
    plugin_version,
)
from topology.core.mig import MIG, MIG_IDS
from topology.core.report import SharesAnswer

DEFAULT_RESOURCE = GpuResource()
SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"
# The plugin's option for shared devices, by each name that it has had.
POLICY_OPTION = re.compile(r"(?:^|-|_)allocation[-_]policy$", re.IGNORECASE)
CONFIG_OPTION = re.compile(r"^(--)?config[-_]file$", re.IGNORECASE)
PACKED_SINCE = (0, 20)
# The message with which the plugin's versions 0.15 to 0.19 refuse a container several shares.
REFUSED = "maximum request size for shared resources is 1"
# The Node's label from which the plugin's config-manager chooses the configuration file.
CONFIGURATION_LABEL = "nvidia.com/device-plugin.config"


def resources_of(
    allocatable: Mapping[str, Collection[DeviceId]],
    labels: Mapping[str, str],
    refuses_several: bool | None = None,
    counted: Mapping[str, int] | None = None,
) -> tuple[GpuResource, ...]:
    """Return the GPU resources that the kubelet hands out.

    Replicas and MIG instances are recognised by their device ids. ``refuses_several`` says whether
    the plugin refuses a container more than one shared device. ``counted`` is how many devices each
    resource has, sick ones included. A node whose plugin serves nothing right now has the default
    resource, with nothing to hand out.
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
    """Return how many devices the plugin serves for each GPU or MIG instance.

    The result is None if the plugin shares none. After a fault of a whole GPU the plugin reports
    one of its shares as unhealthy, and the kubelet does not hand that share out. So one GPU may
    show too few shares. But shares are numbered from 0, all GPUs have the same number of shares,
    and each GPU has at least one healthy share.
    """
    shared = Counter(base_uuid(i) for i in ids if "::" in i)
    if not shared:
        return None
    numbers = (i.rpartition("::")[2] for i in ids)
    highest = max((int(n) for n in numbers if n.isdecimal() and len(n) < 10), default=0)
    return max(*shared.values(), highest + 1, -(-counted // len(shared)))


def lacks_shares(ids: Collection[DeviceId], served: GpuResource) -> bool:
    """Check whether the kubelet holds back a share of some GPU or MIG instance."""
    found = Counter(base_uuid(i) for i in ids if "::" in i)
    return any(shares < served.replicas for shares in found.values())


def allocator_of(
    resources: Sequence[GpuResource],
    plugin: Plugin | None,
    kubelet: KubeletConfig,
    chosen: str | None = None,
    doubt: str = "",
) -> tuple[AllocatorConfig, tuple[Unseen, ...]]:
    """Return how the devices are chosen, and which parts of that are not known.

    ``chosen`` is the plugin's policy if an operator has set it. ``doubt`` says why the plugin sees
    other links than the record has, in which case its preference is not known. It is empty
    otherwise.
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
            else "its settings are in its own file, or name an unknown policy"
        )
        unseen.append(Unseen("device plugin's policy", f"{cause}, so it may pick any devices"))
    topology_manager = kubelet.topology_manager_policy
    if topology_manager is None:
        unseen.append(
            Unseen("Topology Manager's policy", "the kubelet's configuration could not be read")
        )
    if kubelet.cpu_manager_policy is None or kubelet.memory_manager_policy is None:
        cause = (
            "neither the kubelet nor a file shows them, so pods of the QoS class Guaranteed get "
            "no promises"
        )
        unseen.append(Unseen("CPU and Memory Managers' policies", cause))
    config = AllocatorConfig(
        policy or "any",
        plugin.version if plugin else None,
        topology_manager or UNKNOWN,
        kubelet.topology_manager_scope or "container",
        kubelet.cpu_manager_policy,
        kubelet.memory_manager_policy,
        kubelet.prefers_closest,
        full_cores_only=kubelet.full_cores_only,
    )
    return config, tuple(unseen)


def _policy(resources: Sequence[GpuResource], plugin: Plugin | None) -> str | None:
    """Return the plugin's policy; None if it is not known.

    It is ``best-effort`` if the plugin serves only whole GPUs, else the configured one. Unshared
    MIG instances do not matter, because the plugin has no preference among them.
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
        return None  # two allocators on one node have no common policy
    version = plugin_version(plugin.version)
    if version is not None and version < PACKED_SINCE:
        return "distributed"
    for name, value in plugin.options.items():
        if POLICY_OPTION.search(name):
            return value if value in ("distributed", "packed") else None
    told_by_file = any(CONFIG_OPTION.match(n) and v for n, v in plugin.options.items())
    return None if told_by_file else "distributed"


# The start of the running device plugin (RFC 3339), and its configuration.
_Running = tuple[str, str]


class SharesTracker:
    """What the plugin of one node has done since it got its configuration.

    ``former`` is what the former agent has learnt.
    """

    def __init__(self, former: SharesAnswer | None = None) -> None:
        self.learnt = former  # what was learnt last, perhaps under another configuration
        self._plugin: _Running | None = None
        self._since = ""

    @property
    def answer(self) -> SharesAnswer | None:
        """What the running plugin did last; None if that is not known."""
        learnt = self.learnt
        holds_for = None if learnt is None else (learnt.plugin_started, learnt.configuration)
        return learnt if holds_for == self._plugin else None

    @property
    def refuses_several(self) -> bool | None:
        """Whether the plugin refuses a container several shares; None if that is not known."""
        return None if self.answer is None else self.answer.refused

    def look(self, context: NodeContext, holders: Holders, now: str) -> None:
        """Learn from the pods and from the devices that they hold; ``now`` is the time of day."""
        if context.plugin is None or not context.plugin.started:
            self._plugin = None
            return
        if not context.labels and all(unseen.fact != NODE for unseen in context.unseen):
            return  # the Node has not been read yet, so its label is not known
        started = context.plugin.started
        configuration = context.labels.get(CONFIGURATION_LABEL, "")
        before, self._plugin = self._plugin, (started, configuration)
        if self._plugin != before:
            reconfigured = self._reconfigured(before, started, configuration)
            self._since = now if reconfigured else started
            if reconfigured and self.answer is not None:
                # it was learnt earlier, when the plugin had this configuration before
                self.learnt = None
        for at, refused in _deeds(context, holders):
            known = self.answer
            if at > self._since and (
                known is None or (at >= known.pod_started and refused != known.refused)
            ):
                self.learnt = SharesAnswer(refused, at, started, configuration)

    def _reconfigured(self, before: _Running | None, started: str, configuration: str) -> bool:
        """Check whether the running plugin had, or may have had, another configuration before.

        A restarted agent that knows nothing of this plugin cannot tell how long the Node has had
        its label.
        """
        if before is not None:
            return before[0] == started
        learnt = self.learnt
        if learnt is None or learnt.plugin_started != started:
            return bool(configuration)
        return learnt.configuration != configuration


def _deeds(context: NodeContext, holders: Holders) -> list[tuple[str, bool]]:
    """Return, sorted, when each present pod started and whether the plugin refused it."""
    found = [
        (context.pods[uid].started, False)
        for uid, entry in holders.by_uid.items()
        if uid in context.pods
        and any(sum("::" in device for device in held.device_ids) > 1 for held in entry.held)
    ]
    found += [(pod.started, True) for pod in context.pods.values() if REFUSED in pod.refusal]
    return sorted(found)
