"""The published papers' node model: CPU, memory and shares of GPUs; the policy picks node and GPU.

Nothing of the service runs here: it is for comparing with published figures. Read in this order:
:mod:`~benchmarks.papers.model`, :mod:`~benchmarks.papers.policies`,
:mod:`~benchmarks.papers.simulation`, :mod:`~benchmarks.papers.openb`.
"""
