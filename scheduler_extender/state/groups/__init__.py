"""Groups of pods: their members, the domains that they may go to, and the places kept for them.

May know nodes and answers. Knows no lock: whoever asks passes in what is known.
"""
