"""The options that the commands of this package share."""

from __future__ import annotations

import argparse


def parser(prog: str, description: str, *, seed: str) -> argparse.ArgumentParser:
    """A parser with ``--seed``; ``seed`` says of what. The caller adds what is its own."""
    found = argparse.ArgumentParser(
        prog=prog,
        description=f"{description} It needs Go and builds the managers once.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    found.add_argument("--seed", type=int, default=0, help=f"seed of {seed}")
    return found
