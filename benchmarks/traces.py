"""The location of the traces that are replayed."""

import os
from pathlib import Path


class TraceMissingError(Exception):
    """The error that a trace is missing. The message names the path that was tried."""


def trace(place: str) -> Path:
    """Return the path of a trace in ``$GPU_TOPOLOGY_SHARED``, or in ``shared`` beside the checkout.

    Raises :class:`TraceMissingError`.
    """
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("GPU_TOPOLOGY_SHARED", str(root.parent / "shared")))
    path = folder / "traces" / place
    if not path.is_file():
        raise TraceMissingError(
            f"{path}: no such file (set GPU_TOPOLOGY_SHARED; docs/evidence/results.md#traces "
            "says where the traces come from)"
        )
    return path
