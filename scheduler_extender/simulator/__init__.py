"""A cluster that is played: everything in it but the extender, which is the real one.

The nodes are emulated (:mod:`topology.emulation`). Everything takes time, arrives late, and may
fail. A file for each:

``clock``
    When things happen; ``faults`` says how long they take and what goes wrong.
``apiserver``
    Keeps pods and records, takes Bindings, and tells the others.
``watches``
    Carry the news, each watcher's in order, late, and sometimes not at all.
``scheduler``
    kube-scheduler: asks the extender, binds beside its loop, and tries again; gangs at once.
    ``asking`` is its side of the extender's protocol.
``node``
    A kubelet, which admits pods in batches, container by container, and an agent, which looks at
    the node when it gets to it and reports late.
``claims``
    The ResourceSlices and ResourceClaims of nodes with DRA, and what kube-scheduler picks.
``extender``
    The real extender: its verbs over its cluster.

They share a ``scene``: the time, the nodes, the tally of what happened, and an observer, who is
told what becomes of pods. ``cluster`` puts them together. ``overapi`` plays the same nodes over a
real API server.
"""
