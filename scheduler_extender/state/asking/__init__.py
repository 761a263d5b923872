"""Many nodes are asked for one request: by themselves, and for a member of a group.

Works out what is not remembered, on the facts of one snapshot, and stops at a deadline.
"""
