"""The section of one sweep of ``simulate``: title, sentences, table and drawings.

:mod:`section` puts it together out of :mod:`cases`, each a cluster under one load. :mod:`lead` says
the result in sentences, :mod:`played` what was played; :mod:`table` has every figure,
:mod:`means` draws the rows and :mod:`course` what happened in time.
"""
