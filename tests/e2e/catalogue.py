"""Which machines of the catalogue the tests of NVIDIA's programs go through."""

import os
from collections.abc import Sequence

from tests.e2e.building import NEWEST, plugin_versions
from topology.machines import MACHINES

# Go through all machines and all versions of the plugin, which takes long; by hand.
EVERY_MACHINE = bool(os.environ.get("GPU_TOPOLOGY_EVERY_MACHINE"))
ONE = "dgx1-v100"
IN_CI = ("v0.17.4", "v0.18.2", NEWEST)


def versions() -> Sequence[str]:
    """The versions of the device plugin to try."""
    return plugin_versions() if EVERY_MACHINE else IN_CI


def stacks() -> Sequence[tuple[str, str]]:
    """Machine and plugin version: one machine with each version, the others with the newest."""
    one = [(ONE, version) for version in versions()]
    others = [name for name in MACHINES if name != ONE] if EVERY_MACHINE else []
    return [*one, *((name, NEWEST) for name in others)]
