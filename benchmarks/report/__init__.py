"""One HTML page out of a file that ``simulate --json`` writes.

:mod:`page` checks the file and fills the template, and :mod:`drawing` works out where things are in
the drawings.
"""
