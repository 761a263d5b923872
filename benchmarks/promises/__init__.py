"""The closed loop. It plays a cluster in virtual time, with every known fault, and counts promises.

:mod:`scheduler_extender.simulator` plays the cluster. :mod:`workloads` and :mod:`fleets` draw pods
and nodes, and :mod:`outages` lets parts fail. :mod:`judge` compares the GPUs that pods get with
what they were promised. :mod:`plays` builds one play, of the extender or of the rule that it is
compared with. :mod:`bykind` adds up the figures of many plays.
"""
