"""The node agent: publishes what is in its node, who holds it, and whether it is healthy.

::

    probes/    reads NVML, sysfs, the kubelet and the API server; everything here does I/O
    model/     what follows from the readings: pure, on a clock that is passed in
    settings   what an operator chooses
    loop       one sync: probes what is due, lets ``model`` decide, says what follows
    publisher  writes the record
    metrics    what Prometheus is told; serving: the port for it
    service    the threads; runs the syncs and carries out their results
    command    what the command line calls

A report comes about like this:

1. A watcher in :mod:`~topology.agent.probes` sees something new (NVML, a pod) and takes a note.
2. :class:`~topology.agent.service.AgentService` wakes up and runs a sync of
   :class:`~topology.agent.loop.NodeAgent`.
3. The sync asks the kubelet if it is time (:mod:`~topology.agent.model.polling`), finds out whose
   the listed devices are (:mod:`~topology.agent.model.podentries`) and which entries count
   (:mod:`~topology.agent.model.holders`).
4. It looks at the hardware (:mod:`~topology.agent.model.hardware`) and its health
   (:mod:`~topology.agent.model.health`), and composes the record of all this
   (:mod:`~topology.agent.model.record`).
5. :class:`~topology.agent.publisher.Publisher` writes what has changed.

If a question fails, the agent publishes the rest and lists the one fact that it asked for as
unseen. The extender imports nothing of this package.
"""
