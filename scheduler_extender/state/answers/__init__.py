"""What a node answers to a request, and the answers that are remembered.

``decision`` is the filter table. ``lookup`` and ``remembered`` keep answers by the state of a node;
``refusing`` counts what kubelets refuse. May know nodes and pods. Knows no groups, and asks about
one node at a time.
"""
