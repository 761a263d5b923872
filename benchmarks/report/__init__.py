"""One HTML page out of the files that ``simulate --json`` writes.

:mod:`reading` checks files and puts shards together. :mod:`sweeps` makes a section of each sweep
out of :mod:`parts`, with the words of :mod:`wording`, the drawings of :mod:`plots`, and the colours
of :mod:`colours`.
"""

from collections.abc import Sequence

from benchmarks.figures.simulated import Simulated
from benchmarks.report.reading import ReportError

__all__ = ["ReportError", "page"]


def page(files: Sequence[Simulated]) -> str:
    """The page, complete in itself: no script, nothing to load. One section per sweep.

    Shards of one sweep, that is files with equal parameters, are put together. Raises
    :class:`ReportError` where files contradict one another.
    """
    # Drawing takes a second to import, and only this needs it.
    from benchmarks.report.writing import write

    return write(files)
