"""The node agent: publishes what is in its node, who holds it, and whether it is healthy.

Read in this order: :mod:`~topology.agent.observed` (what NVML and sysfs say, as values),
:mod:`~topology.agent.nvml` and :mod:`~topology.agent.pci` (who ask them),
:mod:`~topology.agent.inventory` (the node's topology out of it), :mod:`~topology.agent.holdings`
(who holds what, from the kubelet's PodResources), :mod:`~topology.agent.health`,
:mod:`~topology.agent.facts` (how devices are chosen), :mod:`~topology.agent.publisher` (the writes)
and :mod:`~topology.agent.loop` (when to look and when to write).

What decides is a function of its arguments; what asks costs, where it fails, the one fact it was
asked for, and that fact is listed as unseen. The extender imports nothing of it.
"""
