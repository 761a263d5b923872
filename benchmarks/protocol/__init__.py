"""The published papers' node model: CPU, memory and shares of GPUs; the policy picks node and GPU.

Nothing of the service runs here: it is for comparing with published figures. Read in this order:
:mod:`~benchmarks.protocol.model`, :mod:`~benchmarks.protocol.fragmentation`,
:mod:`~benchmarks.protocol.policies`, :mod:`~benchmarks.protocol.simulation`,
:mod:`~benchmarks.protocol.bound`, :mod:`~benchmarks.protocol.openb`.
"""
