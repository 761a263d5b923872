"""Groups of pods: their members, their domains, and their reservations.

This package may import ``node`` and ``answers``. It takes no lock: the caller passes in the state.
"""
