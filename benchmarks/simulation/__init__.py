"""Jobs over time on a cluster, under the extender or under kube-scheduler alone.

The extender's verbs are the shipping ones. kube-scheduler's in-tree filters and scores are written
anew here; the kubelets and NVIDIA's device plugin are emulated (:mod:`topology.emulation`). A
policy chooses a node, as it would in a cluster. Time is virtual, and a decision takes none of it.

From a trace line to a table row: :mod:`sources` makes jobs of a trace, and :mod:`sweep` lists the
simulations. :mod:`simulation` lets the jobs arrive, wait, run and end on a :mod:`fleet`, where a
:mod:`policy` places them. :mod:`figures` adds up the seeds.

The figures cannot be compared with those of :mod:`benchmarks.papers`, where policies pick the GPUs.
"""
