"""A node whose kubelet has refused pod after pod takes one now and then
(:mod:`scheduler_extender.state.node.history`)."""

from scheduler_extender.framework.rule import NodeEvaluation, Rule
from scheduler_extender.state.answers.decision import Refusals
from topology.core.placement import Reason, Rejection


class BackoffRule(Rule):
    """See the module."""

    def check(self, node: NodeEvaluation) -> Rejection | None:
        """Why the node takes no such pod now."""
        backoff = node.info.refusing(node.alone)
        if backoff is None or node.settings.refusals is Refusals.IGNORE:
            return None
        return refusing(backoff.reason, alike=backoff.of_one_kind)


def refusing(reason: str, *, alike: bool) -> Rejection:
    """Why a node takes no pod whose kubelet has refused pod after pod, ``reason`` the latest.

    ``alike`` says that they asked for the same as this one. No eviction helps. The text is the same
    in a pause and while one pod tries: kube-scheduler looks at a pod again whenever its reason
    changes.
    """
    which = "pods that ask the same" if alike else "pods"
    words = f"the node's kubelet has refused {which} ({reason}): one is tried now and then"
    return Rejection(words, False, Reason.REFUSING)
