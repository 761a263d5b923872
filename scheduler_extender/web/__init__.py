"""The map in the browser: pages of the admin port that show the cluster's GPUs.

:mod:`.overview` groups equal nodes, :mod:`.waiting` says why pods wait, and :mod:`.drawing` draws
nodes. :mod:`.pages` renders the pages, with templates that :mod:`.html` loads. :mod:`.live` tells
browsers that the cluster has changed. The states of GPUs come from
:mod:`scheduler_extender.explain`. :mod:`.routes` joins the parts.
"""
