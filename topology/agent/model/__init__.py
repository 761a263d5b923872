"""What follows from the readings, on a clock that is passed in: pure functions and trackers.

A *tracker* stores its inputs over one boot. Its methods take the time of the call. Nothing here
does I/O. In the order of the work:

* Values: :mod:`~topology.agent.model.observations` (what NVML and sysfs show),
  :mod:`~topology.agent.model.podentries` (which pod holds which devices),
  :mod:`~topology.agent.model.nodecontext` (what the API server and the kubelet's configuration
  say).
* The kubelet: :mod:`~topology.agent.model.polling` (when it is asked),
  :mod:`~topology.agent.model.holders` (which entries of its list count),
  :mod:`~topology.agent.model.exclusive` (exclusive CPUs and memory).
* The hardware: :mod:`~topology.agent.model.hardware`, :mod:`~topology.agent.model.health`,
  :mod:`~topology.agent.model.unresponsive` (GPUs that do not answer),
  :mod:`~topology.agent.model.utilization` (use without a pod, and pods without use).
* The record: :mod:`~topology.agent.model.devicepolicy` (how devices are chosen),
  :mod:`~topology.agent.model.recordlimits` (what fits), :mod:`~topology.agent.model.record`.
"""
