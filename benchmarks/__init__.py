"""Measurements: how fast the service answers, beside a route that does nothing.

Each command prints a table and, with ``--json FILE``, writes its figures with every parameter.
"""
