"""The rules to which nodes of one equivalence class answer alike, in their order.

kube-scheduler gets the first rejection that no eviction can resolve, or else the first of all. Two
rejections are not rules, because they depend on more than a node and a request:
:mod:`.stalewatches`, and :mod:`.possiblerefusals` (the answers of the other nodes).
:mod:`.equivalence` applies them on top of the cached answers.
"""

from scheduler_extender.framework.rule import Rule
from scheduler_extender.framework.rules.backoff import BackoffRule
from scheduler_extender.framework.rules.devices import DevicesRule
from scheduler_extender.framework.rules.gangs import Gangs
from scheduler_extender.framework.rules.memory import Memory
from scheduler_extender.framework.rules.promises import Promises
from scheduler_extender.framework.rules.reservations import Reservations
from scheduler_extender.framework.rules.strength import Strength

RULES: list[Rule] = [
    DevicesRule(),
    Memory(),
    Promises(),
    Strength(),
    BackoffRule(),
    Reservations(),
    Gangs(),
]
