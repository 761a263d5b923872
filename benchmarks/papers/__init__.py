"""The node model of published papers, for comparison with their figures.

A node has CPU, memory and shares of GPUs, and the policy picks the node and the GPU. No code of the
service runs here. Read in this order:
:mod:`~benchmarks.papers.model`, :mod:`~benchmarks.papers.policies`,
:mod:`~benchmarks.papers.simulation`, :mod:`~benchmarks.papers.openb`.
"""
