"""One HTML page out of a file that ``simulate --json`` writes.

:mod:`reading` checks the file, :mod:`drawing` works out where things are in the drawings, and
:mod:`page` fills the template.
"""
