"""The node agent: publishes what is in its node, who holds it, and whether it is healthy.

::

    asks/      what is asked: NVML, sysfs, the kubelet, the API server; everything here does I/O
    decides/   what follows from the answers: pure, on a clock that is passed in
    settings   what an operator chooses
    loop       one turn: asks what is due, lets ``decides`` decide, says what follows
    publisher  writes the record
    metrics    what Prometheus is told; serving: the port for it
    service    the threads; takes the turns and carries out what they say
    command    what the command line calls

A report comes about like this:

1. A watcher in :mod:`~topology.agent.asks` sees something new (NVML, a pod) and takes a note.
2. :class:`~topology.agent.service.AgentService` wakes up and takes a turn of
   :class:`~topology.agent.loop.NodeAgent`.
3. The turn asks the kubelet if it is time (:mod:`~topology.agent.decides.polling`), finds out whose
   the listed devices are (:mod:`~topology.agent.decides.holdings`) and which entries count
   (:mod:`~topology.agent.decides.holders`).
4. It looks at the hardware (:mod:`~topology.agent.decides.hardware`) and its health
   (:mod:`~topology.agent.decides.health`), and composes the record of all this
   (:mod:`~topology.agent.decides.record`).
5. :class:`~topology.agent.publisher.Publisher` writes what has changed.

If a question fails, the agent publishes the rest and lists the one fact that it asked for as
unseen. The extender imports nothing of this package.
"""
