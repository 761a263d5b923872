"""What is known of the cluster, and what follows from it.

Six packages, each of which imports only those before it: ``pods``, ``node``, ``answers``,
``groups``, ``cluster``, ``asking``. None does I/O or draws a random number; clocks are passed in.
"""
