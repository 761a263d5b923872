"""What a node answers to a request, and the cached answers.

``decision`` holds an answer, and what an operator chooses about answers. ``classes`` finds the
nodes that answer alike, and ``answercache`` caches their answers and counts the requests of pods.
``refusing`` counts the refusals of kubelets. ``tallies`` counts answers and errors. This package
may import ``node`` and ``pods``. It knows no groups, and each answer is about one node.
"""
