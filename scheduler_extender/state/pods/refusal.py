"""What counts as a refusal: a kubelet has turned away a pod that was bound to its node.

The kubelet decides whether it admits a pod before it starts anything. If it does not, it writes
``status.phase: Failed`` with a reason and a message of its own, and the pod never runs. The same
write sets ``status.startTime``; a pod that was admitted gets its start time, too. (Kubernetes:
``pkg/kubelet/kubelet.go`` rejectPod, ``pkg/kubelet/lifecycle/predicate.go`` and
``pkg/kubelet/cm`` for the reasons.)
"""

import re
from dataclasses import dataclass

# Reasons that speak about the node: it cannot give what it offers, and the next pod may meet the
# same. So do all that begin with :data:`OUT_OF`.
OF_THE_NODE = ("UnexpectedAdmissionError", "TopologyAffinityError", "InvalidNodeInfo")
# Reasons that speak about the pod, or its match with the node: another pod does not meet them. They
# are counted and told, and take no node out: else one bad template could take out many.
OF_THE_POD = (
    "AppArmor",
    "NodeAffinity",
    "PodFeatureUnsupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SMTAlignmentError",
    "SysctlForbidden",
)
# How the reason begins where the kubelet counts less of a resource than the pod asks for; the
# resource's name follows, as in ``OutOfnvidia.com/gpu``.
OUT_OF = "OutOf"
OUT_OF_NAMED = ("OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage")
OUT_OF_DEVICES = "OutOfDevices"  # the label of every other reason that begins with :data:`OUT_OF`
OTHER = "other"
# Everything that :attr:`Refusal.label` can be.
LABELS = (*OF_THE_NODE, *OUT_OF_NAMED, OUT_OF_DEVICES, *OF_THE_POD, OTHER)
# How a kubelet's message begins, whatever the reason (Kubernetes 1.26 and later).
REJECTED = "Pod was rejected"
# A reason that may be told to everybody: one word, with room for a resource's name.
_WORD = re.compile(r"[\w./-]{1,330}", re.ASCII)
MOST_TEXT = 200  # characters of a kubelet's message that are kept


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a kubelet has turned a pod away, in its own words: ``status.reason`` and ``.message``.

    Other pods are told the reason, so one that is no word becomes :data:`OTHER`.
    """

    reason: str
    message: str = ""

    @property
    def label(self) -> str:
        """The reason as one of :data:`LABELS`."""
        if self.reason in LABELS and self.reason != OUT_OF_DEVICES:
            return self.reason
        return OUT_OF_DEVICES if self.reason.startswith(OUT_OF) else OTHER

    @property
    def of_the_node(self) -> bool:
        """Whether another pod may meet the same on this node."""
        return self.reason not in OF_THE_POD


def refusal_of(phase: str, reason: str, message: str, *, has_containers: bool) -> Refusal | None:
    """Why the kubelet has refused a pod with this status; None if it has not.

    ``has_containers`` is whether the status names containers: then the pod was admitted once. It
    counts only for reasons that we do not know: a kubelet that restarts may refuse a pod that ran.
    """
    if phase != "Failed" or not reason:
        return None
    known = reason in OF_THE_NODE or reason in OF_THE_POD or reason.startswith(OUT_OF)
    if not known and (has_containers or not message.startswith(REJECTED)):
        return None
    return Refusal(reason if _WORD.fullmatch(reason) else OTHER, message[:MOST_TEXT])
