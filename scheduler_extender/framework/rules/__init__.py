"""The rules that equal nodes answer alike, in their order.

kube-scheduler is told the first refusal that no eviction can turn, else the first of all. Two
refusals are no classes, as they depend on more than a node and a request: :mod:`.freshness` (a
watch is blind) and :mod:`.possible` (what the other nodes answer). :mod:`.equivalence` puts them on
top of the answers that it remembers.
"""

from scheduler_extender.framework.rule import Rule
from scheduler_extender.framework.rules.backoff import Backoff
from scheduler_extender.framework.rules.devices import Devices
from scheduler_extender.framework.rules.gangs import Gangs
from scheduler_extender.framework.rules.memory import Memory
from scheduler_extender.framework.rules.promises import Promises
from scheduler_extender.framework.rules.reservations import Reservations
from scheduler_extender.framework.rules.strength import Strength

RULES: list[Rule] = [
    Devices(),
    Memory(),
    Promises(),
    Strength(),
    Backoff(),
    Reservations(),
    Gangs(),
]
