"""Decides whether a pod may go to a node, and how well it fits there.

:func:`.evaluator.evaluate` is the only entry. The model is kube-scheduler's framework. A rule
prepares once for each pod what it needs, and then checks node by node. Every rejection is a value
that names its reason.

The folder has one file for each step of an evaluation. The rules stand in ``rules`` (one node at a
time) and ``setrules`` (all nodes together).
"""
