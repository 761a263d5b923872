"""The state of the cluster behind one lock: sources write it, and verbs read snapshots of it.

``cache`` holds the state and changes it, assumed pods included. ``pods`` draws a pod's life.
``nodes`` holds the nodes and their domains. ``freshness`` says what time alone changes. This
package may import all packages before it. It evaluates no request: ``framework`` does that on a
``snapshot``, without the lock.
"""
