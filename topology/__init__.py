"""Nodes and their GPUs: the pure model, what feeds it, and the agent that publishes it.

Start with ``core``, the model. ``machines`` is the catalogue of known hardware. ``sources`` reads
the text that people paste, and ``codec`` reads and writes the records of the API server.
``kubeapi`` talks to the API server, and ``agent`` runs on each node. ``emulation`` plays a node for
tests and benchmarks.

A set of GPUs is a *mask*: an ``int`` whose bit *p* stands for the GPU at position *p* of
``NodeTopology.gpus``.
"""


def our_version() -> str:
    """Return the version of this package, or ``unknown`` in a source tree without installation."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gpu-topology")
    except PackageNotFoundError:
        return "unknown"
