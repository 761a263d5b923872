"""The pure core: a node's devices and links, the sets it may hand out, and its guarantees.

No module here does I/O, reads a clock or draws a random number. Every result is a function of its
arguments, and import contracts enforce this. Read the modules in this order:

1. ``devices``, ``links`` and ``graph`` hold a node's GPUs and how they are joined. ``shape`` is the
   hardware without names, which nodes of the same hardware share.
2. ``requests`` is what a pod requests, ``report`` is what the agent saw, and ``devicesets`` counts
   devices.
3. ``allocators`` gives every answer that one device plugin may give. ``admission`` gives every set
   that one kubelet may give a pod. ``possiblestates`` gives every set of devices that may be free
   at admission.
4. ``placement`` gives the verdict. ``guaranteedcapacity`` and ``scoring`` give the cost of a
   placement to the cluster.

Three modules serve all of them: ``patterns`` finds cliques, rings and connected sets of GPUs,
``memo`` caches results by their arguments within a bound in bytes, and ``budget`` limits the work
of one evaluation.
"""
