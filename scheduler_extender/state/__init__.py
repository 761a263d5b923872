"""What is known of the cluster, and what follows from it.

Five packages, each of which imports only those before it: ``pods``, ``node``, ``answers``,
``groups``, ``cluster``. Questions about it are asked in ``framework``. None does I/O or draws a
random number; clocks are passed in.
"""
