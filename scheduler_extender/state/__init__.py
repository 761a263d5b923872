"""The state of the cluster, and what follows from it.

There are five packages, each of which imports only those before it: ``pods``, ``node``,
``answers``, ``groups``, ``cluster``. ``framework`` evaluates requests on this state. No package
does I/O or draws a random number; clocks are passed in.
"""
