"""Everything that is known now, behind one lock: what sources feed, and snapshots for who asks.

``nodes`` and ``pods`` are what is known, ``freshness`` and ``keptplaces`` what time changes;
``cluster`` is the lock around them. May know all packages before it. It works no answer out: that
is done on a ``snapshot`` without the lock, in ``asking``.
"""
