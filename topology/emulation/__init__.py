"""An emulation of a node: NVIDIA's device plugin and the kubelet's device manager, step by step.

This is the counterpart of ``admission`` and ``allocators`` in :mod:`topology.core`. Those give
every outcome that is possible. The emulation produces one of these outcomes as the real programs
do, by walking through lists in a random order. The demo, the benchmarks and the tests run against
it. The extender never does. Neither side uses the other's code. Otherwise both could have the same
mistake, and a comparison would not find it.
"""

from topology.emulation.kubelet import EmulatedKubelet, MixedKubelet
from topology.emulation.plugin import PluginCrash, PluginRefusal
from topology.emulation.topologymanager import Refused

__all__ = [
    "EmulatedKubelet",
    "MixedKubelet",
    "PluginCrash",
    "PluginRefusal",
    "Refused",
]
