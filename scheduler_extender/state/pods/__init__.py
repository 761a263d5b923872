"""One pod: what it asks for, where it may go, who owns it, and what a kubelet has said of it.

May know what a pod's manifest says. Knows no node and no other pod; a disruption budget counts the
pods that it selects.
"""
