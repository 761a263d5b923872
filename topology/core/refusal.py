"""What counts as a refusal: a kubelet has refused a pod that was bound to its node.

The kubelet decides whether it admits a pod before it starts anything. If it does not admit the pod,
it writes ``status.phase: Failed`` with a reason and a message of its own, and the pod never runs.
The same write sets ``status.startTime``; an admitted pod gets its start time, too. (Kubernetes:
``pkg/kubelet/kubelet.go`` rejectPod, ``pkg/kubelet/lifecycle/predicate.go`` and ``pkg/kubelet/cm``
for the reasons.)
"""

import re
from dataclasses import dataclass

# Reasons that are about the node: it cannot give what it offers, and the next pod may be refused
# for the same reason. All reasons that begin with :data:`OUT_OF` belong here, too.
OF_THE_NODE = ("UnexpectedAdmissionError", "TopologyAffinityError", "InvalidNodeInfo")
# Reasons that are about the pod, or about its match with the node: other pods are not refused for
# them. They are counted and announced, but they close no node. Otherwise one bad template could
# close many nodes.
OF_THE_POD = (
    "AppArmor",
    "NodeAffinity",
    "PodFeatureUnsupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SMTAlignmentError",
    "SysctlForbidden",
)
# The beginning of the reason if the kubelet counts less of a resource than the pod asks for. The
# name of the resource follows, as in ``OutOfnvidia.com/gpu``.
OUT_OF = "OutOf"
OUT_OF_NAMED = ("OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage")
OUT_OF_DEVICES = "OutOfDevices"  # the label of all other reasons that begin with :data:`OUT_OF`
OTHER = "other"
# All values of :attr:`Refusal.label`.
LABELS = (*OF_THE_NODE, *OUT_OF_NAMED, OUT_OF_DEVICES, *OF_THE_POD, OTHER)
# The beginning of a kubelet's message for any reason (Kubernetes 1.26 and later).
REJECTED = "Pod was rejected"
# A reason that every user may see: one word, long enough for a resource's name.
_WORD = re.compile(r"[\w./-]{1,330}", re.ASCII)
MOST_TEXT = 200  # characters that are kept of a kubelet's message


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a kubelet has refused a pod, in its own words: ``status.reason`` and ``.message``.

    Users of other pods may see the reason. So a reason that is not one word becomes :data:`OTHER`.
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
        """Whether this node may refuse another pod for the same reason."""
        return self.reason not in OF_THE_POD


def refusal_of(phase: str, reason: str, message: str, *, has_containers: bool) -> Refusal | None:
    """Return why the kubelet has refused a pod with this status; None if it has not.

    ``has_containers`` says whether the status names containers: the pod was then admitted before.
    It counts only for reasons that we do not know, because a kubelet that restarts may refuse a pod
    that ran.
    """
    if phase != "Failed" or not reason:
        return None
    known = reason in OF_THE_NODE or reason in OF_THE_POD or reason.startswith(OUT_OF)
    if not known and (has_containers or not message.startswith(REJECTED)):
        return None
    return Refusal(reason if _WORD.fullmatch(reason) else OTHER, message[:MOST_TEXT])
