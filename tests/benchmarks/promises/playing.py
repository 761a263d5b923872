"""Several closed loops at once."""

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from benchmarks.promises.plays import Play, play
from scheduler_extender.simulator.scene import Tally


def play_all(plays: Iterable[Play]) -> list[Tally]:
    """Play them on the cores there are."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(play, plays))
