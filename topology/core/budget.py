"""Limits on the work of one evaluation, whatever a pod requests and a node publishes.

Work is counted in steps and not in time, so the same question has the same answer on every machine.
One step follows about one set of devices through one container; it takes a microsecond or two. The
cost of a result is cached with it and counted again at every use, so a result does not depend on
what is cached. An evaluation that exceeds its budget ends on the safe side: nothing is guaranteed
(the hazard is :data:`SPENT`), a pod counts as one that endangers an outstanding guarantee, and a
score is neutral.

An evaluation about whole GPUs, on machines with up to 16 of them, with one or two containers and
a few pods that come and go, stays well within these limits.
"""

# The hazard of an evaluation that exceeded its budget: too many things may happen to follow all of
# them.
SPENT = "too-much-at-once"

ADMISSION_STEPS = 6_000  # for one way to admit one pod, all its containers together
ASKED_STEPS = 20  # the cost of one call of the allocator
# The cost of one set of NUMA nodes that a manager may name in a hint for one container.
HINT_STEPS = 2
# For the search of every state that a node may be in. Four pairs that come to an 8-GPU node
# together, before a report shows the first, take 14,000.
STATE_SEARCH_STEPS = 20_000
# the same on nodes of more than 8 GPUs, where a step costs more
STATE_SEARCH_STEPS_OF_LARGER = 10_000
# For the outcomes of one pod in all these states. The evaluation stops early if, at the rate so
# far, all states would take twice this budget.
POD_OUTCOMES_STEPS = 60_000
# the same on nodes of more than 8 GPUs, where a step costs more
POD_OUTCOMES_STEPS_OF_LARGER = 8_000
SCORE_STEPS = 10_000  # for the fragmentation cost of one placement
CHECK_STEPS = 60_000  # to check if one more pod would endanger an outstanding guarantee on a node

# GPUs of a small node. It has at most 256 sets, so a table of all sets is worked out once.
SMALL = 8
LARGE = 16  # GPUs; on larger nodes fewer sets are listed, and there are no tables of all sets
MAX_SETS = 20_000  # more sets than this are not listed; C(16, 8) = 12,870 are
MAX_SETS_OF_LARGE = 2_048  # the same for nodes of more than 16 GPUs; C(64, 2) = 2,016 are listed


# The same for MIG instances. They have no links, so the answer for every set is known without a
# list of the sets. The sets are listed only for people to read.
MAX_SETS_OF_MIG = 256


def most_sets(gpus: int, width: int) -> int:
    """Return the most sets that are listed on a node of ``gpus`` GPUs.

    ``width`` is the number of bits per GPU in the node's device sets.
    """
    return MAX_SETS if gpus <= LARGE and gpus * width <= 64 else MAX_SETS_OF_LARGE
