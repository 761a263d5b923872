"""Untrusted input is read, or refused in a line: texts of ours, changed at random.

``python -m tests.fuzz`` runs for long, ``test_fuzz.py`` for a moment. :mod:`.mutation` changes,
:mod:`.targets` says what is read and what must hold.
"""
