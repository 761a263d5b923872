"""One node: its record, its pods, and what follows for its devices.

The facts of a node are a value. A transition gives the facts after a change; the ledger says which
devices are available; verification holds a report against what was foreseen. May know pods. Knows
no other node, no settings and no answers.
"""
