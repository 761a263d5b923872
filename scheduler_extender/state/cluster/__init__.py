"""Everything that is known now, behind one lock, and what the sources feed into it.

The only part of the state that changes. May know all rooms below it. It works no answer out: that
is done without the lock, in ``asking``.
"""
