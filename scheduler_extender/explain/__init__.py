"""What people and programs are told of nodes and pods, on the admin port, the command line and the
map.

What is told is structs: values in Python, JSON on the wire, and the schemas of ``/openapi.json``.
Of a node, ``gpustates`` says how each GPU stands, and ``nodesummary`` what is free of it and who
shares a GPU. Of a pod, from the bottom: ``answers`` asks all nodes, and counts them in a line;
``nodeanswers`` has all that one node answers, and what it lacks; ``remedies`` says whose end would
help, or what the pod could ask for instead; ``placedpod`` says what the pod got; ``explanation``
puts these together. ``waitingreasons`` has the pods that wait, ``idle`` says whose end would let
them in, ``evictions`` whom to evict, and ``groupfit`` judges pods of a file. ``wording`` has the
phrases.
"""

import msgspec


class Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A field without a default is in every answer; one that equals its default is left out."""
