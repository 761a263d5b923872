"""One HTML page made from a file that ``simulate --json`` writes.

:mod:`page` checks the file and fills the template. :mod:`drawing` computes the coordinates in the
drawings.
"""
