"""What a node answers to a request, and the answers that are remembered.

``decision`` is the filter table, with the places that are reserved for other pods.
``classes`` finds the nodes that answer alike, ``answercache`` keeps their answers.
``refusing`` counts what kubelets refuse, ``tallies`` what was answered, ``faults`` what failed,
``mix`` what pods ask for, and ``capacity`` what can still be promised. May know nodes and pods.
Knows no groups, and asks about one node at a time.
"""
