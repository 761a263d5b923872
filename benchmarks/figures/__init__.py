"""What is written with ``--json`` and read again, written down once for both sides.

:mod:`simulated` is what ``simulate`` writes and :mod:`compared` what ``compare`` writes; ``report``
reads the former again, also from strangers. :mod:`schema` is what both are made of. Nobody reads
what the other commands write, so they write it as they make it.
"""
