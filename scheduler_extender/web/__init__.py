"""The map in the browser: the cluster's GPUs as pages of the admin port.

:mod:`.nodes` says how every GPU of a node stands, :mod:`.capacity` what can still be promised.
:mod:`.glance` puts alike nodes together, :mod:`.waiting` says why pods wait, and :mod:`.drawing`
draws. :mod:`.pages` makes HTML of it, :mod:`.live` tells browsers that something has changed.
:mod:`.guard` and :mod:`.sessions` are the door, :mod:`.routes` joins the parts.
"""
