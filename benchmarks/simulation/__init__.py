"""As shipped: jobs over time on a cluster, under the extender or under other policies.

The extender's verbs are the shipping ones; kube-scheduler's in-tree filters and scores, the
kubelets and NVIDIA's device plugin are emulated (:mod:`topology.emulation`). A policy chooses here
what it would choose in a cluster: a node, and GPUs only where it brings a device plugin of its own.
Time is virtual, and deciding takes none of it.

From a trace line to a table row: :mod:`sources` makes jobs of a trace, :mod:`plays` says which
simulations there are, :mod:`simulation` lets the jobs arrive, wait (:mod:`queues`), run and leave
on a :mod:`fleet`, :mod:`sweep` makes figures of what became of them (:mod:`observe`), and
:mod:`rows` puts seeds and shards together and prints them.

Not to be compared with :mod:`benchmarks.papers`, in which policies pick GPUs for everybody.
"""
