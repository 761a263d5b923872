"""The node agent, which publishes the GPUs of its node, the pods that hold them, and their health.

::

    probes/    reads NVML, sysfs, the kubelet and the API server; everything here does I/O
    model/     what follows from the readings; pure, on a clock that is passed in
    settings   the options that an operator chooses
    loop       one sync: runs the probes that are due, lets ``model`` decide, returns the results
    publisher  writes the record
    metrics    the metrics for Prometheus; serving: the port for them
    service    the threads; runs the syncs and carries out their results
    command    the functions that the command line calls

The agent makes a report in these steps:

1. A watcher in :mod:`~topology.agent.probes` sees a change (in NVML, or of a pod) and notes it.
2. :class:`~topology.agent.service.AgentService` wakes up and runs a sync of
   :class:`~topology.agent.loop.NodeAgent`.
3. If the next request is due (:mod:`~topology.agent.model.polling`), the sync requests the
   kubelet's list. It finds the pod of each listed device (:mod:`~topology.agent.model.podentries`)
   and decides which entries count (:mod:`~topology.agent.model.holders`).
4. The sync reads the hardware (:mod:`~topology.agent.model.hardware`) and its health
   (:mod:`~topology.agent.model.health`). It composes the record from all of this
   (:mod:`~topology.agent.model.record`).
5. :class:`~topology.agent.publisher.Publisher` writes the parts that have changed.

If a request fails, the agent publishes the rest, and lists what it requested as unseen. The
extender imports nothing from this package.
"""
