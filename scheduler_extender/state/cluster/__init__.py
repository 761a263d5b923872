"""Everything that is known now, behind one lock: what sources feed, and snapshots for who asks.

``board`` holds what is known, ``feed`` and ``binds`` change it, ``cluster`` is all three behind the
lock. ``nodes`` and ``pods`` are on the board, ``freshness`` is what time changes.
May know all packages before it. It works no answer out: that is done on a ``snapshot`` without the
lock, in ``asking``.
"""
