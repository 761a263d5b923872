"""What the commands write with ``--json``, written down once, for who writes it and who reads it.

:mod:`simulated` is what ``simulate`` writes and :mod:`compared` what ``compare`` writes; ``report``
reads both again, also from strangers. :mod:`promised` and :mod:`speed` are what the other commands
write. :mod:`schema` is what all of them are made of.
"""
