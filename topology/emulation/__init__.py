"""Plays a node: NVIDIA's device plugin and the kubelet's device manager, step by step.

This is the counterpart of ``admission`` and ``allocators`` in :mod:`topology.core`. They say
everything that may happen. This does one of those things as the real programs do it: it walks
through lists in a random order. The demo, the benchmarks and the tests run against it. The extender
never does, and neither side uses the other's code: otherwise both could have the same mistake, and
a comparison would not find it.
"""

from topology.emulation.kubelet import EmulatedKubelet
from topology.emulation.plugin import PluginCrash, PluginRefusal
from topology.emulation.topologymanager import Refused

__all__ = [
    "EmulatedKubelet",
    "PluginCrash",
    "PluginRefusal",
    "Refused",
]
