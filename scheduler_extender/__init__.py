"""The scheduler extender tells kube-scheduler which nodes can keep a pod's GPU constraints.

- ``annotations`` turns a pod into a request; ``wire`` is extender/v1 on the wire.
- ``state`` holds what is known of the cluster, and caches answers; ``framework`` evaluates nodes.
- ``verbs`` answers filter, prioritize, bind and preempt as plain functions over the state.
- ``evictions`` finds evictions that let a pod run; ``explain`` says what nodes answer, and why.
- ``kube`` and ``files`` fill the state and write binds; ``leader`` elects the replica that writes.
- ``http`` has the ports, ``web`` the map's pages, ``cli`` the commands.
- ``doctor`` checks an installation; ``installing`` edits kube-scheduler's files.
- ``simulator`` simulates a cluster around the extender.
- ``serving`` wires it all together.
- ``demo`` is ``make run``.
"""
