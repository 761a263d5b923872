"""The rules about nodes by name, and about all nodes together, in their order."""

from scheduler_extender.framework.setrule import SetRule
from scheduler_extender.framework.setrules.claims import Claims
from scheduler_extender.framework.setrules.groups import Groups
from scheduler_extender.framework.setrules.inflight import InFlight
from scheduler_extender.framework.setrules.served import Served

SET_RULES: list[SetRule] = [InFlight(), Claims(), Served(), Groups()]
