"""Promises in virtual time: emulated nodes, every fault we know of, and what was kept.

:mod:`closed_loop` is the cluster that the extender is played against; its docstring names the
actors, a file each. :mod:`extender` is the real extender, and the rule that it is compared with.
:mod:`workloads` draws pods and nodes, :mod:`plays` runs closed loops, and :mod:`bykind` makes
figures of them.
"""
