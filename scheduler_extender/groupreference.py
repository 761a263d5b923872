"""Read which group a pod belongs to, and which domain the group must share.

A *group* is a set of pods of one namespace that belong together. Our annotation ``group`` names it.
Without this annotation the group is that of another program: the first of :data:`SOURCES` that the
pod names. ``group-size`` is its number of members. ``group-domain`` is what the nodes of all
members must share; such a set of nodes is a *domain*.

A *gang* is a group whose scheduler decides about all members before it binds the first.
``spec.schedulingGroup`` or the label of the coscheduling plugin names it. Our annotations alone
make no gang, since the stock scheduler binds such pods one by one.
"""

import re
from dataclasses import dataclass
from typing import Any

from scheduler_extender.quantities import BadValueError, annotation
from scheduler_extender.wire import Pod

GROUP = "gpu-topology.io/group"
SIZE = "gpu-topology.io/group-size"
DOMAIN = "gpu-topology.io/group-domain"
# The annotations that are read here, without their prefix.
GROUP_KEYS = ("group", "group-size", "group-domain")

NODE = "node"
NVLINK_DOMAIN = "nvlink-domain"
# NVIDIA's GPU feature discovery writes ``clusterUUID.cliqueId`` into this label.
CLIQUE_LABEL = "nvidia.com/gpu.clique"

MAX_SIZE = 4096  # members of a group

_name = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?", re.ASCII).fullmatch
_label_key = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
).fullmatch


@dataclass(frozen=True, slots=True)
class Source:
    """The label and annotation in which another program writes a pod's group."""

    name: str
    label: str
    size: str = ""  # the annotation with the group's size; empty if there is none
    gang: bool = False  # its scheduler decides about all members at once


JOB_LABEL = "batch.kubernetes.io/job-name"
# Used as the source's name where ``spec.schedulingGroup`` of kube-scheduler names the group.
SCHEDULING_GROUP = "podgroup"

# Their order of precedence, after ``spec.schedulingGroup``: a whole stands before its parts.
SOURCES = (
    Source("coscheduling", "scheduling.x-k8s.io/pod-group", gang=True),
    Source("kueue", "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"),
    Source(
        "leaderworkerset",
        "leaderworkerset.sigs.k8s.io/group-key",
        "leaderworkerset.sigs.k8s.io/size",
    ),
    Source("jobset", "jobset.sigs.k8s.io/jobset-name"),
    Source("job", JOB_LABEL),
)


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """A group by namespace and name.

    The name of another program's group begins with the source and a slash.
    """

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class GroupReference:
    """A pod's reference to its group."""

    group: Group
    size: int | None = None  # number of members; None if it is unknown
    # What the members must share: :data:`NODE`, :data:`NVLINK_DOMAIN` or the key of a node label.
    # None if they may go to any nodes.
    domain: str | None = None
    gang: bool = False
    peers_counted: bool = False  # every pod of the gang counts in ``size``

    @property
    def as_gang(self) -> Group | None:
        """The group, if it is a gang."""
        return self.group if self.gang else None

    @property
    def text(self) -> str:
        """The reference in words.

        >>> GroupReference(Group("team-a", "train"), 18, NVLINK_DOMAIN).text
        'group-size=18 group-domain=nvlink-domain'
        """
        said = {"group-size": self.size, "group-domain": self.domain}
        return " ".join(f"{key}={value}" for key, value in said.items() if value is not None)


def group_ref_of(pod: Pod) -> GroupReference | None:
    """Return the pod's group reference.

    Return None if the pod is in no gang and has none of our annotations for groups. Raises
    :class:`BadValueError` with the reason if the reference cannot be read.
    """
    ours = pod.metadata.annotations or {}
    labels = pod.metadata.labels or {}
    scheduled = pod.spec.scheduling_group
    if (
        not any(key in ours for key in (GROUP, SIZE, DOMAIN))
        and scheduled is None
        and SOURCES[0].label not in labels
    ):
        return None
    theirs, source, gang = _theirs(pod, labels)
    named = annotation(ours, GROUP, _group_name)
    domain = annotation(ours, DOMAIN, _domain)
    size = annotation(ours, SIZE, _size)
    if size is None and source is not None and source.size in ours:
        size = annotation(ours, source.size, _size)
    name = named or theirs
    wanted = next((key for key in (DOMAIN, SIZE, GROUP) if key in ours), None)
    if name is None:
        raise BadValueError(f"annotation {wanted}: the pod is in no group; set {GROUP}")
    if domain is not None and size is None:
        raise BadValueError(f"annotation {DOMAIN}: the group's size is unknown; set {SIZE}")
    if domain is None and wanted is not None and not gang:
        raise BadValueError(
            f"annotation {wanted}: {DOMAIN} is missing; it says which domain the members share"
        )
    kind = SCHEDULING_GROUP if source is None else source.name
    counted = size is not None and (named is None or theirs == f"{kind}/{named}")
    return GroupReference(Group(pod.metadata.namespace, name), size, domain, gang, gang and counted)


def _theirs(pod: Pod, labels: dict[str, str]) -> tuple[str | None, Source | None, bool]:
    """Return another program's group: its name, its source, and whether it is a gang.

    The name includes the source. The source is None for ``spec.schedulingGroup``.
    """
    scheduled = pod.spec.scheduling_group
    if scheduled is not None and scheduled.pod_group_name:
        return f"{SCHEDULING_GROUP}/{scheduled.pod_group_name}", None, True
    for source in SOURCES:
        if labels.get(source.label):
            return f"{source.name}/{labels[source.label]}", source, source.gang
    return None, None, False


def _group_name(text: str) -> str:
    if not _name(text):
        raise BadValueError("allowed are at most 253 letters, digits, '-', '_' and '.'")
    return text


def _size(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 2 <= int(text) <= MAX_SIZE:
        raise BadValueError(f"allowed are whole numbers from 2 to {MAX_SIZE}")
    return int(text)


def _domain(text: str) -> str:
    if not _label_key(text):
        raise BadValueError(f"allowed are {NODE}, {NVLINK_DOMAIN} and keys of node labels")
    return text


def render_group_ref(
    group_ref: GroupReference,
) -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
    """Return annotations, labels and spec fields from which :func:`group_ref_of` reads this."""
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    spec: dict[str, Any] = {}
    kind, slash, name = group_ref.group.name.partition("/")
    label = next((source.label for source in SOURCES if source.name == kind), None)
    if not slash:
        annotations[GROUP] = kind
        if group_ref.gang:
            # The reference does not keep the name of the pod's gang. A gang of the same name is
            # enough.
            other = kind if group_ref.peers_counted else f"{kind}.gang"
            spec["schedulingGroup"] = {"podGroupName": other}
    elif label is None:
        spec["schedulingGroup"] = {"podGroupName": name}
    else:
        labels[label] = name
    if group_ref.size is not None:
        annotations[SIZE] = str(group_ref.size)
    if group_ref.domain is not None:
        annotations[DOMAIN] = group_ref.domain
    return annotations, labels, spec
