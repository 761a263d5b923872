"""Many nodes are asked for one request: by themselves, and for a member of a group.

Takes what is known from ``cluster``, works out what is not remembered, and stops when its time is
up.
"""
