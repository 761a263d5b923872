"""Judges what happened in a cluster while parts of it were killed, paused and cut off.

A run leaves a history as a file (:mod:`.history`). :mod:`.story` puts it in order, :mod:`.checks`
looks for what must never happen, :mod:`.report` says it. ``python -m tests.chaos FILE`` judges a
file again.

Nothing here imports the extender or its model: what they get wrong must not be wrong here in the
same way. ``test_checks.py`` holds us to that.
"""
