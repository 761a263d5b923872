"""The Kubernetes API server as agent and extender meet it: a client and a list-and-watch.

Both raise and survive what a real server does: 409, 410, outages, stalls. Neither knows anything
of GPUs.
"""
