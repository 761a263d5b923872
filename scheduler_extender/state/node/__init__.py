"""One node: its record, its pods, and what follows for its devices.

The NodeInfo of a node is a value. A transition returns the NodeInfo after a change. The ledger says
which devices are available. Verification compares a report with the prediction. This package may
import ``pods``. It knows no other node, no settings and no answers.
"""
