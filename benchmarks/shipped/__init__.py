"""As shipped: jobs over time on a cluster of real parts, or of what plays them by the letter.

The extender's verbs are the shipping ones; kube-scheduler's in-tree filters and scores, the
kubelets and NVIDIA's device plugin are emulated (:mod:`topology.emulation`). Whoever a policy
stands for chooses here what it would choose in a cluster: a node, and GPUs only where it brings a
device plugin of its own. Time is virtual, and deciding takes none of it.

Not to be compared with :mod:`benchmarks.protocol`, in which policies pick GPUs for everybody.
"""
