"""Jobs over time on a cluster, under the extender or under kube-scheduler alone.

The extender's verbs are the shipping ones; kube-scheduler's in-tree filters and scores, the
kubelets and NVIDIA's device plugin are emulated (:mod:`topology.emulation`). A policy chooses here
what it would choose in a cluster: a node. Time is virtual, and deciding takes none of it.

From a trace line to a table row: :mod:`sources` makes jobs of a trace, :mod:`sweep` says which
simulations there are, :mod:`simulation` lets the jobs arrive, wait, run and leave on a
:mod:`fleet`, where a :mod:`policy` puts them, and :mod:`figures` puts the seeds together.

Not to be compared with :mod:`benchmarks.papers`, in which policies pick GPUs for everybody.
"""
