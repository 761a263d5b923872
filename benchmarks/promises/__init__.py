"""The closed loop: promises in virtual time, every fault we know of, and what was kept.

:mod:`scheduler_extender.simulator` is the cluster that is played. :mod:`workloads` and
:mod:`fleets` draw pods and nodes, :mod:`outages` lets things fail, and :mod:`judge` looks on: it
compares what pods were promised with what they got. :mod:`plays` puts a play together, of the
extender or of the rule that it is compared with, and :mod:`bykind` makes figures of many.
"""
