"""What a node answers to a request, and the answers that are remembered.

``decision`` is an answer, and what an operator chooses about answers. ``classes`` finds the nodes
that answer alike, ``answercache`` keeps their answers, and counts what pods ask for. ``refusing``
counts what kubelets refuse, ``tallies`` what was answered, and what failed. May know nodes and
pods. Knows no groups, and asks about one node at a time.
"""
