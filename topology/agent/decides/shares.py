"""Whether the device plugin gives a container several shares of GPUs, learnt from what it did.

NVIDIA's plugin has an option for that, ``failRequestsGreaterThanOne``, in a configuration file of
its own: no label and no flag tells of it. But what the plugin has done tells:

* a container that holds several shares was given them;
* a pod that was refused with :data:`REFUSED` was refused for want of the option.

Either counts where the pod started after the plugin did. The configuration may change when the
plugin starts anew, and where its config-manager takes another file because of the Node's label:
then all that was learnt is forgotten. Where the plugin did both, the later counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from topology.agent.decides.holders import Holders
from topology.agent.decides.surroundings import Surroundings

REFUSED = "maximum request size for shared resources is 1"
"""The plugin's words when it refuses a container several shares, by its versions 0.15 to 0.19."""
CONFIGURATION_LABEL = "nvidia.com/device-plugin.config"
"""The Node's label by which the plugin's config-manager chooses the configuration file."""


@dataclass(frozen=True, slots=True)
class _Deed:
    """What the plugin did with a pod that started then (RFC 3339)."""

    started: str
    refused: bool


class SharesBook:
    """What one node's plugin has done since it has had its configuration."""

    def __init__(self) -> None:
        self._configured: tuple[str, str | None] | None = None
        self._since = ""
        self._last: _Deed | None = None

    @property
    def refuses_several(self) -> bool | None:
        """Whether the plugin refuses a container several shares; None where it has not shown."""
        return None if self._last is None else self._last.refused

    def look(self, around: Surroundings, holders: Holders, now: str) -> None:
        """Take in who holds what and which pods there are; ``now`` is the time of day."""
        plugin = around.plugin
        if plugin is None or not plugin.started:
            self._configured = self._last = None
            return
        configured = (plugin.started, around.labels.get(CONFIGURATION_LABEL))
        if configured != self._configured:
            known = self._configured is not None and self._configured[0] == plugin.started
            self._since = now if known else plugin.started
            self._configured, self._last = configured, None
        for deed in _deeds(around, holders):
            if deed.started > self._since and (
                self._last is None or deed.started >= self._last.started
            ):
                self._last = deed


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
