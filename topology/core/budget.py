"""How much work one evaluation may be, whatever a pod asks and a node publishes.

Work is counted in steps, never in time, so that the same question has the same answer everywhere:
a step is about one set of devices followed through one container, a microsecond or two. What an
answer cost is remembered with it and counted again wherever it is used, so an answer does not
depend on what is remembered either. What is over budget is given up on the safe side: nothing is
promised (:data:`SPENT` is the hazard), a pod counts as one that endangers an outstanding promise,
and a score is neutral.

The answers about whole GPUs of machines with up to 16 of them, a container or two and a few pods
that come and go stay well within.
"""

SPENT = "too-much-at-once"
"""The hazard of a question that was given up: too much may happen to follow it all."""

ADMISSION_STEPS = 6_000  # for one way to admit one pod, all its containers together
ASKED_STEPS = 20  # what a question to the allocator is counted as
HINT_STEPS = 2
"""What one set of NUMA nodes is counted as, that a manager may name in a hint for one container."""
STATE_SEARCH_STEPS = 20_000
"""For every state that a node may be in. Four pairs that come to an 8-GPU node at one time, before
a report shows the first, take 14,000."""
# the same on nodes of more than 8 GPUs, where a step costs more
STATE_SEARCH_STEPS_OF_LARGER = 10_000
POD_OUTCOMES_STEPS = 60_000
"""For what may come of one pod in all these states; given up early where it would take twice."""
OUTLOOK_STEPS_OF_LARGER = 8_000  # the same on nodes of more than 8 GPUs, where a step costs more
SCORE_STEPS = 10_000  # for the fragmentation cost of one placement
CHECK_STEPS = 60_000  # for whether one more pod would endanger any promise outstanding on a node

SMALL = 8
"""GPUs; of so few there are at most 256 sets, so what holds of each is worked out once for all."""
LARGE = 16  # GPUs; on larger nodes fewer sets are listed, and there are no tables of all sets
MAX_SETS = 20_000  # above so many sets they are not listed: C(16, 8) = 12,870 is
MAX_SETS_OF_LARGE = 2_048  # the same for nodes of more than 16 GPUs: C(64, 2) = 2,016 is


MAX_SETS_OF_MIG = 256
"""The same for MIG instances. They have no links, so what holds of every set is told without a
list of them; sets are listed for people to read."""


def most_sets(gpus: int, width: int) -> int:
    """How many sets are listed at most on a node of so many GPUs, with pools of ``width``."""
    return MAX_SETS if gpus <= LARGE and gpus * width <= 64 else MAX_SETS_OF_LARGE


def state_search_steps(gpus: int) -> int:
    """The budget for every state that a node of so many GPUs may be in."""
    return STATE_SEARCH_STEPS if gpus <= SMALL else STATE_SEARCH_STEPS_OF_LARGER


def pod_outcomes_steps(gpus: int) -> int:
    """The budget for what may come of one pod on a node of so many GPUs."""
    return POD_OUTCOMES_STEPS if gpus <= SMALL else OUTLOOK_STEPS_OF_LARGER
