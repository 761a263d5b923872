"""One pod: its request, its eligible nodes, its controller, and what its kubelet has answered.

This package may read a pod's manifest. It knows no node and no other pod, except that a disruption
budget counts the pods that it selects.
"""
