"""The scheduler extender tells kube-scheduler which nodes can keep a pod's GPU constraints.

- ``annotations`` turns a pod into a request; ``wire`` is extender/v1 on the wire.
- ``state`` holds what is known of the nodes, decides, and remembers the answers.
- ``verbs`` answers filter, prioritize, bind and preempt as plain functions over the state;
  ``evictions`` finds evictions that help; ``explain`` says what nodes answer, and why.
- ``kube`` and ``files`` are where the state comes from, and where binds are written; ``leader``
  says which of two replicas writes.
- ``http`` has the two ports, ``web`` the map's pages, ``cli`` the commands.
- ``serving`` wires it all together.
- ``demo`` is ``make run``.
"""
