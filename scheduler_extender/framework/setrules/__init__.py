"""The rules about nodes by name, and about all nodes together, in their order."""

from scheduler_extender.framework.setrule import SetRule
from scheduler_extender.framework.setrules.assumed import AssumedRule
from scheduler_extender.framework.setrules.claims import ClaimsRule
from scheduler_extender.framework.setrules.groups import GroupsRule
from scheduler_extender.framework.setrules.served import Served

SET_RULES: list[SetRule] = [AssumedRule(), ClaimsRule(), Served(), GroupsRule()]
