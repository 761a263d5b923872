"""The node agent: publishes what is in its node, who holds it, and whether it is healthy.

``asks`` holds everyone who asks the machine, the kubelet or the API server; ``decides`` what
follows from their answers. :mod:`~topology.agent.loop` says when to look,
:mod:`~topology.agent.publisher` writes. Read first: :mod:`~topology.agent.decides.observed` (what
NVML and sysfs say, as values), :mod:`~topology.agent.decides.hardware` (the node's topology out of
it), :mod:`~topology.agent.decides.holdings` (who holds what, from the kubelet's PodResources),
:mod:`~topology.agent.decides.health` and :mod:`~topology.agent.decides.allocation` (how devices are
chosen).

What decides is a function of its arguments; what asks costs, where it fails, the one fact it was
asked for, and that fact is listed as unseen. The extender imports nothing of it.
"""
