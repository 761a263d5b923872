"""A real control plane with two replicas of the extender, in which parts are broken on purpose.

:mod:`.network` stands between the programs, :mod:`.replicas` runs them, :mod:`.kubelets` plays the
nodes, :mod:`.sources` reads what etcd and the API server have written down, :mod:`.faults` breaks
things. What happened is judged by :mod:`tests.chaos`, which knows none of these.
"""
