"""The commands of ``python -m benchmarks``, with options, early checks, and output.

A command imports its benchmark only when it runs, so help and errors of usage load no model.
"""
