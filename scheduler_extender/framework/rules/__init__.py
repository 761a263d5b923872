"""The rules to which nodes of one equivalence class answer alike, in their order.

kube-scheduler gets the first rejection that no eviction can resolve, or else the first of all. Two
rejections are not rules, because they depend on more than a node and a request:
:mod:`.stalewatches`, and :mod:`.possiblerefusals` (the answers of the other nodes).
:mod:`.equivalence` applies them on top of the cached answers.
"""

from scheduler_extender.framework.rule import Rule
from scheduler_extender.framework.rules import (
    backoff,
    devices,
    gangs,
    memory,
    promises,
    reservations,
    strength,
)

RULES: list[Rule] = [
    devices.check,
    memory.check,
    promises.check,
    strength.check,
    backoff.check,
    reservations.check,
    gangs.check,
]
