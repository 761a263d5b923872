"""What follows from the answers, on a clock that is passed in: pure functions and books.

A *book* remembers over one boot what it was told; its methods say at what time they are called.
Nothing here asks anybody. In the order of the work:

* Values: :mod:`~topology.agent.decides.observed` (what NVML and sysfs show),
  :mod:`~topology.agent.decides.holdings` (who holds what),
  :mod:`~topology.agent.decides.surroundings` (what the API server and the kubelet's configuration
  say).
* The kubelet: :mod:`~topology.agent.decides.polling` (when it is asked),
  :mod:`~topology.agent.decides.holders` (what of its list counts),
  :mod:`~topology.agent.decides.exclusive` (exclusive CPUs and memory).
* The hardware: :mod:`~topology.agent.decides.hardware`, :mod:`~topology.agent.decides.health`,
  :mod:`~topology.agent.decides.silent` (GPUs that do not answer),
  :mod:`~topology.agent.decides.use` (use without a pod, and pods without use).
* The record: :mod:`~topology.agent.decides.allocation` (how devices are chosen),
  :mod:`~topology.agent.decides.limits` (what fits), :mod:`~topology.agent.decides.record`.
"""
