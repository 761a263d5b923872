"""The map in the browser: the cluster's GPUs as pages of the port for people.

:mod:`.overview` puts alike nodes together, :mod:`.waiting` says why pods wait, and :mod:`.drawing`
draws. :mod:`.pages` makes HTML of it, :mod:`.live` tells browsers that something has changed. How
GPUs stand, :mod:`scheduler_extender.explain` says.
:mod:`.routes` joins the parts.
"""
