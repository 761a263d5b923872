"""Promises in virtual time: emulated nodes, every fault we know of, and what was kept.

``closed_loop`` is the cluster that the extender is played against, ``policies`` are the extender
and what it is compared with, ``plays`` runs them.
"""
