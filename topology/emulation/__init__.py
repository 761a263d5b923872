"""Plays a node: NVIDIA's device plugin and the kubelet's device manager, step by step.

This is the other side of ``admission`` and ``allocators`` in :mod:`topology.core`. They say what
may come; this does one thing that comes, the way the real programs do it, by walking through lists
in a random order. The demo, the benchmarks and the tests run against it. The extender never does,
and neither side uses the other's code: that is what makes a comparison of the two worth something.
"""

from __future__ import annotations

from topology.emulation.kubelet import EmulatedKubelet, Refused
from topology.emulation.plugin import PluginCrash

__all__ = ["EmulatedKubelet", "PluginCrash", "Refused"]
