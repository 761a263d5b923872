"""Nodes and their GPUs: the pure model, what feeds it, and the agent that publishes it.

``core`` is the model and what follows from it (start there); ``machines`` is the catalogue of known
hardware, ``sources`` reads what people paste, ``codec`` the records of the API server, ``kubeapi``
talks to it, ``agent`` runs on each node, and ``emulation`` plays a node for tests and benchmarks.

A set of GPUs is a *mask*: an ``int`` whose bit *p* stands for the GPU at position *p* of
``NodeTopology.gpus``.
"""


def our_version() -> str:
    """The version of this package; ``unknown`` in a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gpu-topology")
    except PackageNotFoundError:
        return "unknown"
