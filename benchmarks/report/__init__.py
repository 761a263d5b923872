"""One HTML page out of the files that ``simulate --json`` and ``compare --json`` write.

:mod:`reading` takes files apart and together, :mod:`shipped` and :mod:`protocol` make a section of
each sweep and comparison out of :mod:`parts`, with :mod:`wording`, :mod:`plots` and :mod:`maps`;
:mod:`colours` has the colours of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.report.reading import ReportError

__all__ = ["ReportError", "page"]


def page(files: Sequence[dict[str, Any]]) -> str:
    """The page, complete in itself: no script, nothing to load. One section per sweep.

    Shards of one sweep, that is files with equal parameters, are put together. Raises
    :class:`ReportError` where files contradict one another.
    """
    # Drawing takes a second to import, and only this needs it.
    from benchmarks.report.writing import write

    return write(files)
