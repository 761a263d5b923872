"""The section of one sweep of ``simulate``: title, sentences, table and drawings.

:mod:`section` says what was played, and puts the section together out of :mod:`cases`, each a
cluster under one load. :mod:`lead` says the result in sentences, :mod:`table` has every figure,
:mod:`means` draws the rows and :mod:`course` what happened in time.
"""
