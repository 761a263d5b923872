"""The Kubernetes API server as agent and extender use it: a client and a list-and-watch.

Both handle what a real server does: 409, 410, outages, stalls. Neither knows anything about GPUs.
"""
