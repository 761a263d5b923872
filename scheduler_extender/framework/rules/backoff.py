"""The back-off of a node whose kubelet has refused pod after pod: it takes a pod now and then.

See :mod:`scheduler_extender.state.node.history`.
"""

from scheduler_extender.framework.rule import NodeEvaluation
from scheduler_extender.state.answers.decision import Refusals
from topology.core.placement import Reason, Rejection


def check(node: NodeEvaluation) -> Rejection | None:
    """Return why the node takes no such pod now."""
    backoff = node.info.refusing(node.without_peers)
    if backoff is None or node.settings.refusals is Refusals.IGNORE:
        return None
    return refusing(backoff.reason, alike=backoff.of_one_kind)


def refusing(reason: str, *, alike: bool) -> Rejection:
    """Return the rejection by a node whose kubelet has refused pod after pod.

    ``reason`` is that of the latest refusal. ``alike`` says that the refused pods had the same
    request as this one. No eviction helps. The text is the same in a pause and while one pod is
    tried, because kube-scheduler looks at a pod again whenever its reason changes.
    """
    which = "pods with this request" if alike else "pods"
    words = f"the node's kubelet has refused {which} ({reason}); it gets one such pod now and then"
    return Rejection(words, False, Reason.REFUSING)
