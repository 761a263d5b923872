"""The commands of ``python -m benchmarks``: options, checks before hours are spent, and output.

What a command measures with it imports when it runs: help and wrong words load no model.
"""
