"""Groups of pods: their members, their domains, and their reservations.

May know nodes and answers. Knows no lock: whoever asks passes in what is known.
"""
