"""The pure model of a node's GPUs, and what its kubelet may hand out.

Read in this order: :mod:`~topology.devices` and :mod:`~topology.links` (what is in a node),
:mod:`~topology.graph` (a node's topology and its shape), :mod:`~topology.requests` (what a pod
asks), :mod:`~topology.allocators` (what kubelet and device plugin may hand out),
:mod:`~topology.belief` (from which free masks), :mod:`~topology.placement` (the verdict).

A set of GPUs is a *mask*: an ``int`` whose bit *p* stands for the GPU at position *p* of
``NodeTopology.gpus``. Everything down to :mod:`~topology.machines` is a function of its
arguments: no I/O, no clock, no randomness (import-linter checks it).
"""
