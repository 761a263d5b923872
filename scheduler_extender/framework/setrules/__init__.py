"""The rules about nodes by name, and about all nodes together, in their order."""

from scheduler_extender.framework.setrule import NameRule, SetRule
from scheduler_extender.framework.setrules import assumed, claims, groups, served

NAME_RULES: list[NameRule] = [assumed.pre_filter, claims.pre_filter, served.pre_filter]
SET_RULES: list[SetRule] = [groups.of_set]
