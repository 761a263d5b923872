"""What a platform engineer checks after installing: ``gpu-topology doctor``.

``looking`` asks the API server, the extender and the files that are named, and changes nothing.
``seen`` is what was seen, or why not. ``checks`` is the table of all checks, each a function from
what was seen to findings; ``schedulerconfig`` has the rules of one of them.
"""
