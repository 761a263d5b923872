"""What follows from the answers, on a clock that is passed in: pure functions and books.

A *book* remembers over one boot what it was told; its methods say at what time they are called.
Nothing here asks anybody. In the order of the work:

* Values: :mod:`~topology.agent.decides.observed` (what NVML shows),
  :mod:`~topology.agent.decides.pcitree`, :mod:`~topology.agent.decides.holdings` (who holds what),
  :mod:`~topology.agent.decides.surroundings` (what the API server says).
* The kubelet: :mod:`~topology.agent.decides.polling`, :mod:`~topology.agent.decides.joining`,
  :mod:`~topology.agent.decides.holders`.
* The hardware: :mod:`~topology.agent.decides.hardware`,
  :mod:`~topology.agent.decides.hardwarebook`, :mod:`~topology.agent.decides.health`,
  :mod:`~topology.agent.decides.unaccounted`.
* The record: :mod:`~topology.agent.decides.allocation` (how devices are chosen),
  :mod:`~topology.agent.decides.limits` (what fits), :mod:`~topology.agent.decides.record`;
  and :mod:`~topology.agent.decides.latency` (how long a bind took to be in it).
"""
