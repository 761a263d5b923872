"""Nodes and pods of the papers, as arrays.

CPU and GPU are in thousandths (``milli``), memory is in MiB. A node has up to eight GPUs. A missing
GPU always has 0 free. A pod requests a share of one GPU, or whole GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WHOLE = 1000
MOST_GPUS = 8

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PodKind:
    """The request of a pod. Equal pods are one kind."""

    cpu: int
    memory: int
    gpus: int
    milli: int  # of each GPU
    models: frozenset[str] = frozenset()  # empty means any model

    @property
    def gpu_milli(self) -> int:
        """The GPU milli that it requests in all."""
        return self.gpus * self.milli

    @property
    def is_share(self) -> bool:
        """Whether it requests a part of one GPU."""
        return self.gpus == 1 and self.milli < WHOLE


@dataclass(frozen=True, slots=True)
class NodeKind:
    """The resources of an empty node."""

    cpu: int
    memory: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class Nodes:
    """The state of all nodes, or of some of them (:meth:`some`), with one row for each."""

    cpu: Ints
    memory: Ints
    gpu: Ints  # free milli, with a column for each GPU
    model: Ints

    @classmethod
    def empty(cls, kinds: Sequence[NodeKind], models: Sequence[str]) -> Nodes:
        """Return nodes on which nothing runs."""
        gpu = np.zeros((len(kinds), MOST_GPUS), dtype=np.int64)
        for row, kind in enumerate(kinds):
            gpu[row, : kind.gpus] = WHOLE
        return cls(
            np.array([k.cpu for k in kinds], dtype=np.int64),
            np.array([k.memory for k in kinds], dtype=np.int64),
            gpu,
            np.array([models.index(k.model) for k in kinds], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.cpu)

    def some(self, rows: Ints) -> Nodes:
        """Return a copy of these rows."""
        return Nodes(self.cpu[rows], self.memory[rows], self.gpu[rows], self.model[rows])

    def take(self, row: int, pod: PodKind, gpus: Sequence[int]) -> None:
        """Place a pod on these GPUs of the node."""
        self.cpu[row] -= pod.cpu
        self.memory[row] -= pod.memory
        for gpu in gpus:
            self.gpu[row, gpu] -= pod.milli


def feasible(nodes: Nodes, pod: PodKind, allowed: Bools) -> Bools:
    """Return for each node whether the pod can run there; ``allowed`` is a flag for each model."""
    fits: Bools = (nodes.cpu >= pod.cpu) & (nodes.memory >= pod.memory)
    if pod.gpus:
        fits = fits & allowed[nodes.model] & ((nodes.gpu >= pod.milli).sum(axis=1) >= pod.gpus)
    return fits
