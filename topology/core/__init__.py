"""The pure core: a node's devices and links, what may be handed out, and what can be promised.

Nothing here does I/O, reads a clock or draws a random number: everything is a function of its
arguments (import contracts keep it so). To read it from the bottom:

1. ``devices``, ``links``, ``graph``: a node's GPUs and how they are joined; its *shape*, which
   nodes of the same hardware share.
2. ``requests``, ``report``, ``devicesets``: what a pod asks, what the agent saw, sets of devices.
3. ``allocators``: everything one device plugin may answer; ``admission``: everything one kubelet
   may give a pod; ``possiblestates``: every state that may be free by then.
4. ``placement``: the verdict; ``guaranteedcapacity`` and ``scoring``: what a placement costs the
   cluster.

These serve them all: ``patterns`` (cliques, rings and connected sets of GPUs), ``memo``
(answers are remembered by their arguments, within a bound) and ``budget`` (how much work one answer
may be).
"""
