"""The checks of an installation by ``gpu-topology doctor``.

``collector`` reads the API server, the extender and the given files, and changes nothing.
``observations`` are what it has read, or why it could not. ``checks`` is the table of all checks.
Each check is a function from the observations to findings. ``installationchecks`` and
``nodechecks`` have the checks, and ``schedulerconfig`` the rules for kube-scheduler's
configuration.
"""
