"""``any``: the policy that assumes nothing, NVIDIA's or another plugin's."""

from topology.core.allocators.best_effort import Unforeseen
from topology.core.allocators.nvidia import NvidiaPlugin
from topology.core.allocators.protocol import Allocator
from topology.core.graph import AllocatorConfig


class Unmodelled(NvidiaPlugin):
    """The model of a plugin of which nothing is known: it may hand out any free devices."""

    name = "any"
    monotone = True

    def under(self, config: AllocatorConfig, *, whole: bool) -> Allocator:
        """Return an allocator with all of NVIDIA's refusals if a version is known.

        Only NVIDIA's plugin has a version.
        """
        return Unforeseen(ranked=False) if whole and config.plugin_version is not None else self


ANY = Unmodelled()
