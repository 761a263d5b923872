"""A simulated cluster in which only the extender is real.

The nodes are emulated (:mod:`topology.emulation`). Everything takes time, arrives late, and may
fail. Each part has a file:

``clock``
    Schedules events. ``faults`` has their delays and the faults.
``apiserver``
    Keeps pods and records, accepts Bindings, and tells the other parts of changes.
``watches``
    Deliver events to each watcher in order, but late, and sometimes not at all.
``scheduler``
    kube-scheduler: it calls the extender, binds asynchronously, and tries again. It tries all
    members of a gang in one cycle. ``asking`` is its side of the extender's protocol.
``node``
    A kubelet, which admits pods in batches, container by container, and an agent, which looks at
    the node now and then and reports late.
``claims``
    The ResourceSlices and ResourceClaims of nodes with DRA, and kube-scheduler's choices there.
``extender``
    The real extender: its verbs over its cluster.

They share a ``scene``: the time, the nodes, the tally of events, and an observer of what becomes of
pods. ``cluster`` puts the parts together. ``overapi`` simulates the same nodes over a real API
server, and ``registration`` makes and removes the objects of such nodes there.
"""
