"""The payloads of extender/v1 and the parts of a Pod that the extender reads.

Keys are the names of the Go fields, in the case that kube-scheduler sends. msgspec decodes them: a
body of 5,000 node names costs a fraction of a millisecond, and unread fields cost nothing.
"""

import re
from typing import Any

import msgspec

from scheduler_extender.clientlimits import MAX_NAMES, MAX_POD_VALUES, MAX_VALUES, UNCOUNTED_BODY

Body = bytes | bytearray
# The exceptions that decoding raises.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_label = re.compile(_LABEL, re.ASCII).fullmatch
_subdomain = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII).fullmatch
_uid = re.compile(r"[!-~]+").fullmatch


class OwnerReference(msgspec.Struct, frozen=True):
    """The owner of an object. A ``controller`` makes a deleted object anew."""

    kind: str = ""
    controller: bool | None = None


class ObjectMeta(msgspec.Struct, rename="camel", frozen=True):
    """The fields of an object's metadata that are read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str = ""
    owner_references: list[OwnerReference] | None = None


class Resources(msgspec.Struct, rename="camel", frozen=True):
    """A container's resources. Quantities are strings; hand-written files may have numbers."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class ContainerPort(msgspec.Struct, rename="camel", frozen=True):
    """The fields of a container's port that are read."""

    host_port: int | None = None


class Container(msgspec.Struct, rename="camel", frozen=True):
    """The fields of a container that are read."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None
    ports: list[ContainerPort] | None = None


class PodClaim(msgspec.Struct, rename="camel", frozen=True):
    """A ResourceClaim of a pod. If it is made from a template, its name is in the pod's status."""

    name: str = ""
    resource_claim_name: str | None = None


class Taint(msgspec.Struct, frozen=True):
    """A taint, which keeps pods without a matching toleration off a node."""

    key: str = ""
    value: str = ""
    effect: str = ""

    @property
    def text(self) -> str:
        """The taint as kubectl writes it.

        >>> Taint("gpu", "", "NoSchedule").text, Taint("team", "a", "NoExecute").text
        ('gpu:NoSchedule', 'team=a:NoExecute')
        """
        return f"{self.key}={self.value}:{self.effect}".replace("=:", ":")


class Toleration(msgspec.Struct, frozen=True):
    """A toleration of a pod, for some taints."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class SchedulingGroup(msgspec.Struct, rename="camel", frozen=True):
    """The PodGroup with which kube-scheduler schedules a pod."""

    pod_group_name: str | None = None


class PodSpec(msgspec.Struct, rename="camel", frozen=True):
    """The fields of a pod's spec that are read."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_name: str | None = None
    resource_claims: list[PodClaim] | None = None
    resources: Resources | None = None
    scheduling_gates: list[Any] | None = None
    scheduling_group: SchedulingGroup | None = None
    priority: int | None = None
    overhead: dict[str, str | int | float] | None = None
    affinity: dict[str, Any] | None = None
    topology_spread_constraints: list[Any] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None


class Condition(msgspec.Struct, rename="camel", frozen=True):
    """One condition of a pod."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class ClaimedResource(msgspec.Struct, rename="camel", frozen=True):
    """A container's extended resource that DRA serves in place of a device plugin."""

    resource_name: str = ""


class ExtendedResourceClaim(msgspec.Struct, rename="camel", frozen=True):
    """The claim that kube-scheduler made for a pod's extended resources."""

    request_mappings: list[ClaimedResource] | None = None
    resource_claim_name: str = ""


class ContainerStatus(msgspec.Struct, frozen=True):
    """A container's status. Only its presence is read."""

    name: str = ""


class PodStatus(msgspec.Struct, rename="camel", frozen=True):
    """The fields of a pod's status that are read."""

    phase: str = "Pending"
    reason: str | None = None
    message: str | None = None
    start_time: str | None = None
    qos_class: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    extended_resource_claim_status: ExtendedResourceClaim | None = None
    resource_claim_statuses: list[PodClaim] | None = None
    nominated_node_name: str | None = None


class Pod(msgspec.Struct, rename="camel", frozen=True):
    """The fields of a Pod that are read."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeStatus(msgspec.Struct, rename="camel", frozen=True):
    """The fields of a node's status that are read."""

    allocatable: dict[str, str | int] | None = None


class NodeSpec(msgspec.Struct, frozen=True):
    """The fields of a node's spec that are read: whether it is cordoned, and its taints."""

    unschedulable: bool = False
    taints: list[Taint] | None = None


class Node(msgspec.Struct, rename="camel", frozen=True):
    """The fields of a Node that are read."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Event(msgspec.Struct, rename="camel", frozen=True):
    """The fields of an Event that are read. ``source`` has the node of its writer."""

    metadata: ObjectMeta = ObjectMeta()
    reason: str = ""
    message: str = ""
    involved_object: dict[str, str] = {}
    source: dict[str, str] = {}
    last_timestamp: str | None = None


class _NamedMeta(msgspec.Struct, frozen=True):
    name: str


class _NamedNode(msgspec.Struct, frozen=True):
    metadata: _NamedMeta


class _RawNodeList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct, rename="pascal", frozen=True):
    """The body of filter and prioritize.

    kube-scheduler sends ``NodeNames`` where ``nodeCacheCapable`` is true and ``Nodes`` otherwise.
    """

    pod: Pod
    nodes: _RawNodeList | None = None
    node_names: list[str] | None = None

    def full_nodes(self) -> list[tuple[str, msgspec.Raw]] | None:
        """Return the full nodes, undecoded, with their names; None if only names were sent."""
        if self.node_names is not None or self.nodes is None:
            return None
        decode = msgspec.json.Decoder(_NamedNode).decode
        return [(decode(raw).metadata.name, raw) for raw in self.nodes.items or []]


class BindingArgs(msgspec.Struct, frozen=True):
    """The body of bind."""

    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")

    def problem(self) -> str | None:
        """Return what is wrong with a name, or None.

        The names become parts of paths on the API server.

        >>> BindingArgs("../../../nodes/n", "default", "u", "n").problem()
        "PodName: allowed are DNS-1123 subdomains of at most 253 characters, not '../../../nodes/n'"
        """
        for name, value, longest, fits, what in (
            ("PodName", self.pod_name, 253, _subdomain, "DNS-1123 subdomains"),
            ("PodNamespace", self.pod_namespace, 63, _label, "DNS-1123 labels"),
            ("PodUID", self.pod_uid, 128, _uid, "printable ASCII without spaces"),
            ("Node", self.node, 253, _subdomain, "DNS-1123 subdomains"),
        ):
            if len(value) > longest or not fits(value):
                shown = value if len(value) <= 64 else value[:64] + "…"
                return f"{name}: allowed are {what} of at most {longest} characters, not {shown!r}"
        return None


class MetaPod(msgspec.Struct, frozen=True):
    """A victim, identified by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """The victims on one node, identified by UIDs."""

    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _VictimMeta(msgspec.Struct, frozen=True):
    uid: str = ""


class _Victim(msgspec.Struct, frozen=True):
    metadata: _VictimMeta = _VictimMeta()


class Victims(msgspec.Struct, frozen=True):
    """The victims on one node as whole pods, of which only the UIDs are read."""

    pods: list[_Victim] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, frozen=True):
    """The body of preempt.

    kube-scheduler sends ``NodeNameToMetaVictims`` where ``nodeCacheCapable`` is true and
    ``NodeNameToVictims`` otherwise.
    """

    pod: Pod = msgspec.field(name="Pod")
    victims: dict[str, Victims | None] | None = msgspec.field(
        name="NodeNameToVictims", default=None
    )
    meta_victims: dict[str, MetaVictims | None] | None = msgspec.field(
        name="NodeNameToMetaVictims", default=None
    )

    def by_node(self) -> dict[str, MetaVictims]:
        """Return the victims of each node, from either form."""
        victims: dict[str, MetaVictims] = {}
        for node, meta in (self.meta_victims or {}).items():
            victims[node] = meta or MetaVictims()
        for node, whole in (self.victims or {}).items():
            if node not in victims:
                uids = [MetaPod(pod.metadata.uid) for pod in (whole and whole.pods) or []]
                victims[node] = MetaVictims(uids, whole.violations if whole else 0)
        return victims


class PreemptionResult(msgspec.Struct, frozen=True):
    """The answer of preempt. A null in it would crash kube-scheduler."""

    meta_victims: dict[str, MetaVictims] = msgspec.field(
        name="NodeNameToMetaVictims", default_factory=dict
    )


class FilterResult(msgspec.Struct, frozen=True):
    """The answer of filter.

    Every node of the request is in exactly one of the first four fields.
    """

    nodes: dict[str, Any] | None = msgspec.field(name="Nodes", default=None)
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)
    failed: dict[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    unresolvable: dict[str, str] = msgspec.field(
        name="FailedAndUnresolvableNodes", default_factory=dict
    )
    error: str = msgspec.field(name="Error", default="")


class HostPriority(msgspec.Struct, frozen=True, gc=False):
    """One node in the answer of prioritize. The score is from 0 to 10."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class BindingResult(msgspec.Struct, frozen=True):
    """The answer of bind. An empty error means success."""

    error: str = msgspec.field(name="Error", default="")


class TooDenseError(Exception):
    """A body has more values than any scheduler sends. Decoding it would take too long."""


class _Parts(msgspec.Struct, rename="pascal", frozen=True):
    pod: msgspec.Raw
    node_names: msgspec.Raw = msgspec.Raw(b"null")


def scheduling(body: Body) -> ExtenderArgs:
    """Decode the body of filter or prioritize. Raises :class:`TooDenseError`, DecodeError."""
    if len(body) > UNCOUNTED_BODY:
        _sparse("body", body, MAX_VALUES)
        parts = _parts_decoder.decode(body)
        _sparse("Pod", bytes(parts.pod), MAX_POD_VALUES)
        _sparse("NodeNames", bytes(parts.node_names), MAX_NAMES)
    return args_decoder.decode(body)


def preempting(body: Body) -> PreemptionArgs:
    """Decode the body of preempt. Raises :class:`TooDenseError`, DecodeError."""
    if len(body) > UNCOUNTED_BODY:
        _sparse("body", body, MAX_VALUES)
        _sparse("Pod", bytes(_parts_decoder.decode(body).pod), MAX_POD_VALUES)
    return preemption_decoder.decode(body)


def _sparse(name: str, text: Body, most: int) -> None:
    """Raise :class:`TooDenseError` for more than ``most`` commas.

    Commas are counted a piece at a time, so that other threads run in between.
    """
    found, piece = 0, 1024 * 1024
    for start in range(0, len(text), piece):
        found += text.count(b",", start, start + piece)
        if found > most:
            raise TooDenseError(f"{name}: more than {most} values")


args_decoder = msgspec.json.Decoder(ExtenderArgs)
_parts_decoder = msgspec.json.Decoder(_Parts)
preemption_decoder = msgspec.json.Decoder(PreemptionArgs)
binding_decoder = msgspec.json.Decoder(BindingArgs)
pod_decoder = msgspec.json.Decoder(Pod)
node_decoder = msgspec.json.Decoder(Node)
event_decoder = msgspec.json.Decoder(Event)
encode = msgspec.json.Encoder().encode
