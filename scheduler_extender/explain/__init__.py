"""Explanations of nodes and pods for people and programs: admin port, command line and map.

They are structs: values in Python, JSON on the wire, and the schemas of ``/openapi.json``.

For a node, ``gpustates`` has the state of each GPU, and ``nodesummary`` the free devices and the
pods that share a GPU.

For a pod, from the bottom up: ``answers`` asks all nodes and counts their answers in a line.
``nodeanswers`` has the whole answer of one node, and what the node lacks. ``remedies`` finds the
pods whose end would help, and what the pod could request instead. ``placedpod`` has what the pod
got. ``explanation`` combines these.

``waitingreasons`` has the pods that wait. ``idle`` finds the idle pods whose end would let them in,
and ``evictions`` the pods to evict. ``groupfit`` judges the pods of a file. ``wording`` has the
phrases.
"""

import msgspec


class Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A field without a default is always present; a field that equals its default is left out."""
