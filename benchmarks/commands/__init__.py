"""The commands of ``python -m benchmarks``: options, checks before hours are spent, and output."""
