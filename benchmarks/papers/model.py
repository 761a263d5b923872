"""Nodes, pods and what a policy is asked, as arrays.

CPU and GPU are in thousandths (``milli``), memory in MiB. A node has up to eight GPUs; those that
it does not have are 0 free for ever. A pod asks for a share of one GPU, or for whole ones.
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
    """What a pod asks; equal pods are one kind."""

    cpu: int
    memory: int
    gpus: int
    milli: int  # of each GPU
    models: frozenset[str] = frozenset()  # none is any

    @property
    def gpu_milli(self) -> int:
        """All that it asks of GPUs."""
        return self.gpus * self.milli

    @property
    def is_share(self) -> bool:
        """Whether it takes part of one GPU."""
        return self.gpus == 1 and self.milli < WHOLE


@dataclass(frozen=True, slots=True)
class NodeKind:
    """What a node has when it is empty."""

    cpu: int
    memory: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class Nodes:
    """The state of all nodes, or of some of them (:meth:`some`): one row each."""

    cpu: Ints
    memory: Ints
    gpu: Ints  # free milli, a column per GPU
    model: Ints

    @classmethod
    def empty(cls, kinds: Sequence[NodeKind], models: Sequence[str]) -> Nodes:
        """Nodes on which nothing runs."""
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
        """These rows, as they are now."""
        return Nodes(self.cpu[rows], self.memory[rows], self.gpu[rows], self.model[rows])

    def take(self, row: int, pod: PodKind, gpus: Sequence[int]) -> None:
        """A pod runs on these GPUs from now on."""
        self.cpu[row] -= pod.cpu
        self.memory[row] -= pod.memory
        for gpu in gpus:
            self.gpu[row, gpu] -= pod.milli


def feasible(nodes: Nodes, pod: PodKind, allowed: Bools) -> Bools:
    """On which nodes the pod can run; ``allowed`` says so of each model."""
    fits: Bools = (nodes.cpu >= pod.cpu) & (nodes.memory >= pod.memory)
    if pod.gpus:
        fits = fits & allowed[nodes.model] & ((nodes.gpu >= pod.milli).sum(axis=1) >= pod.gpus)
    return fits
