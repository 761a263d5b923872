"""Whether the device plugin gives a container several shares of GPUs, learnt from what it did.

NVIDIA's plugin has an option for that, ``failRequestsGreaterThanOne``, in a configuration file of
its own: no label and no flag tells of it. But what the plugin has done tells:

* a container that holds several shares was given them;
* a pod that was refused with :data:`REFUSED` was refused for want of the option.

Either counts where the pod started after the plugin did. The configuration may change when the
plugin starts anew, and where its config-manager takes another file because of the Node's label:
then all that was learnt is forgotten. Where the plugin did both, the later counts.

What was learnt stands in the record, with the plugin's start and the label that it holds for. So an
agent that starts anew knows it, too. It stays there after the label has changed: then the agent
knows that the plugin did part of what it did under another configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from topology.agent.decides.holders import Holders
from topology.agent.decides.surroundings import Surroundings
from topology.core.report import SharesAnswer

REFUSED = "maximum request size for shared resources is 1"
"""The plugin's words when it refuses a container several shares, by its versions 0.15 to 0.19."""
CONFIGURATION_LABEL = "nvidia.com/device-plugin.config"
"""The Node's label by which the plugin's config-manager chooses the configuration file."""


@dataclass(frozen=True, slots=True)
class _Deed:
    """What the plugin did with a pod that started then (RFC 3339)."""

    started: str
    refused: bool


@dataclass(frozen=True, slots=True)
class _Plugin:
    """The device plugin as it runs: since when (RFC 3339), and by which of its configurations."""

    started: str
    configuration: str


class SharesBook:
    """What one node's plugin has done since it has had its configuration.

    ``former`` is what the agent before this one has learnt.
    """

    def __init__(self, former: SharesAnswer | None = None) -> None:
        self._learnt = former
        self._plugin: _Plugin | None = None
        self._since = ""

    @property
    def learnt(self) -> SharesAnswer | None:
        """What was learnt last, also of another configuration."""
        return self._learnt

    @property
    def answer(self) -> SharesAnswer | None:
        """What the plugin did last, None where that is not known of the plugin as it runs."""
        learnt = self._learnt
        holds_for = None if learnt is None else _Plugin(learnt.plugin_started, learnt.configuration)
        return learnt if holds_for == self._plugin else None

    @property
    def refuses_several(self) -> bool | None:
        """Whether the plugin refuses a container several shares; None where it has not shown."""
        return None if self.answer is None else self.answer.refused

    def look(self, around: Surroundings, holders: Holders, now: str) -> None:
        """Take in who holds what and which pods there are; ``now`` is the time of day."""
        if around.plugin is None or not around.plugin.started:
            self._plugin = None
            return
        if not around.labels and not around.node_unseen:
            return  # nobody has looked at the Node yet, so its label is not known
        plugin = _Plugin(around.plugin.started, around.labels.get(CONFIGURATION_LABEL, ""))
        before = self._plugin
        if plugin != before:
            reconfigured = self._reconfigured(before, plugin)
            self._plugin, self._since = plugin, now if reconfigured else plugin.started
            if reconfigured and self.answer is not None:
                self._learnt = None  # it is of an earlier time with this configuration
        for deed in _deeds(around, holders):
            known = self.answer
            if deed.started > self._since and (
                known is None
                or (deed.started >= known.pod_started and deed.refused != known.refused)
            ):
                self._learnt = SharesAnswer(
                    deed.refused, deed.started, plugin.started, plugin.configuration
                )

    def _reconfigured(self, before: _Plugin | None, plugin: _Plugin) -> bool:
        """Whether the plugin, as it runs, had another configuration before, or may have had one.

        An agent that starts anew and knows nothing of this plugin cannot tell since when the Node
        has its label.
        """
        if before is not None:
            return before.started == plugin.started
        learnt = self._learnt
        if learnt is None or learnt.plugin_started != plugin.started:
            return bool(plugin.configuration)
        return learnt.configuration != plugin.configuration


def _deeds(around: Surroundings, holders: Holders) -> Iterable[_Deed]:
    """What the plugin did with the pods that are there, in the order in which they started."""
    found = [
        _Deed(around.pods[uid].started, refused=False)
        for uid, entry in holders.by_uid.items()
        if uid in around.pods
        and any(sum("::" in device for device in held.device_ids) > 1 for held in entry.held)
    ]
    found += [
        _Deed(pod.started, refused=True) for pod in around.pods.values() if REFUSED in pod.refusal
    ]
    return sorted(found, key=lambda deed: (deed.started, deed.refused))
