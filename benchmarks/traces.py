"""Where the traces are that are replayed."""

import os
from pathlib import Path


class TraceMissingError(Exception):
    """A trace is not here; the message says where it is looked for."""


def trace(place: str) -> Path:
    """A file of the traces: in ``$GPU_TOPOLOGY_SHARED``, or in ``shared`` beside the checkout.

    Raises :class:`TraceMissingError`.
    """
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("GPU_TOPOLOGY_SHARED", str(root.parent / "shared")))
    path = folder / "traces" / place
    if not path.is_file():
        raise TraceMissingError(
            f"{path}: no such file (set GPU_TOPOLOGY_SHARED; docs/method.md says where the traces "
            "come from)"
        )
    return path
