"""Everything that is known now, behind one lock: what sources feed, and snapshots for who asks.

``cache`` holds and changes it, with the pods that are assumed to be bound. ``pods`` draws a pod's
life, ``nodes`` has the nodes and their domains, ``freshness`` is what time changes.
May know all packages before it. It works no answer out: that is done on a ``snapshot`` without the
lock, in ``framework``.
"""
