"""Pods as the extender keeps them: the request of each, its node, and what it was promised."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from scheduler_extender.annotations import (
    IMPLICIT_NAME,
    MALFORMED,
    PLACEMENT,
    RESERVED,
    ClaimConstraints,
    Malformed,
    PodRequest,
    Template,
    asks_for_any,
    claim_constraints,
    claims_of,
    containers_of,
    is_unasked,
    parse,
    render,
    request_in,
    template_of,
)
from scheduler_extender.groupreference import Group, GroupReference, render_group_ref
from scheduler_extender.state.pods.attributes import (
    BARE,
    SchedulingAttributes,
    attributes_of,
    requests_of,
)
from scheduler_extender.state.pods.reservation import Reservation, reservation_of, value_of
from scheduler_extender.wire import Condition, Pod, PodSpec, PodStatus
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Verdict
from topology.core.refusal import Refusal, refusal_of
from topology.core.requests import NO_CONSTRAINTS, Constraints, GpuRequest, gpu_request
from topology.times import seconds_of, time_text

ENDED = ("Succeeded", "Failed")

T = TypeVar("T")

PodName = tuple[str, str]  # namespace and name
MOST_SAID = 300  # characters that are kept of kube-scheduler's message about a pod


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod that asks for GPUs."""

    uid: PodUid
    namespace: str
    name: str
    node: NodeName | None
    request: GpuRequest | Malformed
    phase: str = "Pending"
    terminating: bool = False
    called_unschedulable: bool = False  # by kube-scheduler, because it fits on no node
    said: str = ""  # kube-scheduler's message about that, on one line
    promised: Constraints = NO_CONSTRAINTS  # by our bind; empty for a plain pod
    survives_endings: bool = False  # whether the promise was guaranteed, and not just expected
    refusal: Refusal | None = None  # why its kubelet has refused it
    admitted: bool = False  # whether its kubelet has admitted it, as far as its status says
    # when it was admitted or refused, by the kubelet's clock, since 1970
    started: float | None = None
    group_ref: GroupReference | None = None  # None if it is in no group, or if that cannot be read
    attributes: SchedulingAttributes = BARE  # what evictions depend on
    reservation: Reservation | None = None  # its reservation by annotation, while it waits
    placed: float | None = None  # when we decided to bind it, as the bind wrote it, since 1970
    gated: bool = False  # whether scheduling gates keep kube-scheduler from trying it
    # Whether kube-scheduler has given it devices by a claim for its extended resource (DRA).
    has_extended_resource_claim: bool = False
    extended_resource_claim: str = ""  # its name
    claims: tuple[str, ...] = ()  # the names of its own claims
    # The claims that were not made for it, if it requires nothing. A pod that replaces it has their
    # devices at once, and no verb looks at them.
    lasting: tuple[str, ...] = ()
    created: float | None = None  # when it was created, since 1970; None if that is not known
    unasked: bool = False  # whether kube-scheduler asks no extender about it
    version: str = field(default="", compare=False)  # its resourceVersion at the API server

    @property
    def full_name(self) -> str:
        """Its namespace and its name."""
        return f"{self.namespace}/{self.name}"

    @property
    def claim_constraints(self) -> ClaimConstraints | None:
        """What it requires of its own claims' devices; None without claims or requirements."""
        request = self.request
        if not isinstance(request, GpuRequest) or request.effective_count or not request.required:
            return None
        return ClaimConstraints(self.namespace, self.claims, request.constraints)

    @property
    def ended(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in ENDED

    @property
    def gang(self) -> Group | None:
        """The gang that it is a member of."""
        return None if self.group_ref is None else self.group_ref.as_gang

    def counts_on_others(self, resource: str) -> bool:
        """Check whether the pod depends on what others do on GPUs that it may share.

        It does if it says how much memory it uses there, or if it was promised that no other pod
        uses them.
        """
        if self.ended or resource_of(self) not in (resource, ""):
            return False
        tells = isinstance(self.request, GpuRequest) and self.request.constraints.gpu_memory
        return bool(tells or self.promised.gpu_memory or self.promised.exclusive_gpus)

    @property
    def unschedulable(self) -> bool:
        """Whether kube-scheduler has said that it fits on no node."""
        return (
            self.node is None
            and self.called_unschedulable
            and not self.terminating
            and not self.ended
        )


def without(by_uid: Mapping[PodUid, T], gone: Collection[PodUid]) -> Mapping[PodUid, T]:
    """Return the mapping without the pods that are gone."""
    return {uid: value for uid, value in by_uid.items() if uid not in gone}


def resource_of(pod: PodRecord) -> str:
    """Return the resource that a pod asks for; empty if its request cannot be read."""
    return pod.request.resource if isinstance(pod.request, GpuRequest) else ""


def pod_record(pod: Pod, managed: tuple[str, ...], *, trusted: bool = False) -> PodRecord | None:
    """Return the record of a pod; None if it asks for none of the ``managed`` resources.

    ``trusted`` says that only the extender, or the author of a cluster file, can have written the
    placement annotation. The annotation then need not name this pod and its node.
    """
    template = template_of(pod)
    asks = _as_snapshot_says(pod, template, managed) if trusted else request_in(template, managed)
    return None if asks is None else _record(pod, template, managed, asks, trusted=trusted)


def claiming_record(pod: Pod, managed: tuple[str, ...]) -> PodRecord | None:
    """Return the record of a pod that asks for 0 of a ``managed`` resource; None for other pods.

    A pod with ResourceClaims of its own does that.
    """
    if not asks_for_any(pod, managed):
        return None
    wanted = claim_constraints(pod, managed)
    constraints = wanted.constraints if isinstance(wanted, ClaimConstraints) else NO_CONSTRAINTS
    asked = gpu_request(0, constraints)
    asks = Malformed(wanted.reason, asked) if isinstance(wanted, Malformed) else PodRequest(asked)
    return _record(pod, template_of(pod), managed, asks)


def requesting_record(
    pod: Pod, managed: tuple[str, ...], waiting: Mapping[PodUid, PodRecord] = MappingProxyType({})
) -> PodRecord | None:
    """Return the record of a pod that asks for devices; None for other pods.

    A pod that requires something of the devices of its own claims counts, too.

    A resourceVersion identifies one state of a pod. If the record of this state is among the
    ``waiting`` pods, the pod is not read again. Only a nomination may be known to kube-scheduler
    before it is written.
    """
    record = waiting.get(PodUid(pod.metadata.uid))
    if (
        record is None
        or not record.version
        or record.version != pod.metadata.resource_version
        or record.attributes.nominated != (pod.status.nominated_node_name or None)
    ):
        record = pod_record(pod, managed) or claiming_record(pod, managed)
    requires = record is not None and (
        isinstance(record.request, Malformed)
        or record.request.effective_count
        or record.claim_constraints
    )
    return record if requires else None


def counting_record(pod: Pod, managed: tuple[str, ...]) -> PodRecord | None:
    """Return the record of a pod that counts in a cluster; None for other pods.

    It counts if it asks for devices, or if it has devices on its node by claims of its own,
    whatever it requires of them.
    """
    there = pod.spec.node_name and pod.spec.resource_claims
    return requesting_record(pod, managed) or (claiming_record(pod, managed) if there else None)


def _record(
    pod: Pod,
    template: Template,
    managed: tuple[str, ...],
    asks: PodRequest | Malformed,
    *,
    trusted: bool = False,
) -> PodRecord:
    attributes, nominated = attributes_of(template, managed), pod.status.nominated_node_name
    made = pod.status.extended_resource_claim_status
    if nominated:
        attributes = replace(attributes, nominated=NodeName(nominated))
    request = asks.request if isinstance(asks, PodRequest) else asks
    placement = _placement_of(pod, trusted=trusted)
    promise = None if placement is None else _PROMISES.get(placement.verdict)
    refusal, admitted, started = _taken(pod.status)
    unscheduled = next(
        (
            each
            for each in pod.status.conditions or ()
            if (each.type, each.status, each.reason) == ("PodScheduled", "False", "Unschedulable")
        ),
        None,
    )
    promised = request.promised if promise and isinstance(request, GpuRequest) else NO_CONSTRAINTS
    return PodRecord(
        uid=PodUid(pod.metadata.uid),
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=NodeName(pod.spec.node_name) if pod.spec.node_name else None,
        request=request,
        phase=pod.status.phase,
        terminating=pod.metadata.deletion_timestamp is not None,
        called_unschedulable=unscheduled is not None,
        said=_said(unscheduled) if unscheduled is not None and not pod.spec.node_name else "",
        promised=promised,
        survives_endings=promised != NO_CONSTRAINTS and promise is Verdict.GUARANTEED,
        refusal=refusal,
        admitted=admitted,
        started=started,
        group_ref=asks.group_ref if isinstance(asks, PodRequest) else None,
        attributes=attributes,
        reservation=reservation_of(pod),
        placed=None if placement is None else seconds_of(placement.time),
        gated=bool(pod.spec.scheduling_gates),
        has_extended_resource_claim=_has_extended_resource_claim(pod, request),
        extended_resource_claim=made.resource_claim_name if made is not None else "",
        claims=claims_of(pod),
        lasting=_lasting(pod, request),
        created=seconds_of(pod.metadata.creation_timestamp or ""),
        unasked=is_unasked(pod, managed),
        version="" if trusted else pod.metadata.resource_version,
    )


def _said(condition: Condition) -> str:
    """Return what a condition says of the nodes, without what it says of preemption."""
    nodes = (condition.message or "")[:MOST_SAID].partition(" preemption: ")[0]
    return " ".join(nodes.split()).removesuffix(".")


def _lasting(pod: Pod, request: GpuRequest | Malformed) -> tuple[str, ...]:
    if not isinstance(request, GpuRequest) or request.required:
        return ()
    claims = pod.spec.resource_claims or ()
    return tuple(each.resource_claim_name for each in claims if each.resource_claim_name)


def _has_extended_resource_claim(pod: Pod, request: GpuRequest | Malformed) -> bool:
    claim = pod.status.extended_resource_claim_status
    mapped = claim.request_mappings if claim is not None else None
    held = request.holds if isinstance(request, Malformed) else request
    if held is None:
        return False
    names = {held.resource, IMPLICIT_NAME} if held.by_implicit_name else {held.resource}
    return any(each.resource_name in names for each in mapped or ())


def _as_snapshot_says(
    pod: Pod, template: Template, managed: tuple[str, ...]
) -> PodRequest | Malformed | None:
    """Return the request of a pod in a cluster file.

    If the file says that the request could not be read, it cannot be read now either, for the same
    reason.
    """
    annotations = dict(pod.metadata.annotations or {})
    reason = annotations.pop(MALFORMED, None)
    if reason is None:
        return request_in(template, managed)
    metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
    holds = parse(msgspec.structs.replace(pod, metadata=metadata), managed)
    return Malformed(reason, holds.request if isinstance(holds, PodRequest) else None)


def _taken(status: PodStatus) -> tuple[Refusal | None, bool, float | None]:
    """Return why the kubelet refused the pod, whether it admitted it, and when it did either.

    A kubelet writes the start time only with its answer. A pod that failed and shows no containers
    may have been refused for a reason that we do not know. So it does not count as admitted.
    """
    containers = bool(status.container_statuses or status.init_container_statuses)
    refusal = refusal_of(
        status.phase, status.reason or "", status.message or "", has_containers=containers
    )
    started = seconds_of(status.start_time or "")
    answered = started is not None or status.phase in ("Running", "Succeeded")
    failed_unseen = status.phase == "Failed" and not containers
    return refusal, answered and refusal is None and not failed_unseen, started


class _Placement(msgspec.Struct):
    """What is read of the placement annotation."""

    verdict: str
    node: str = ""
    uid: str = ""
    time: str = ""


_read_placement = msgspec.json.Decoder(_Placement).decode
_PROMISES = {verdict.value: verdict for verdict in Verdict if verdict.holds}


def _placement_of(pod: Pod, *, trusted: bool) -> _Placement | None:
    """Return what the extender wrote about the pod when it bound it; None if it did not bind it.

    Any user may write the annotation, for example in a template. It can be ours only if it names
    this very pod by its UID, and the pod's node. One Binding writes both, and no user knows a pod's
    UID before the pod exists.
    """
    written = (pod.metadata.annotations or {}).get(PLACEMENT)
    if written is None or not pod.spec.node_name:
        return None
    try:
        placement = _read_placement(written)
    except (msgspec.DecodeError, RecursionError):
        return None
    ours = placement.uid == pod.metadata.uid and placement.node == pod.spec.node_name
    return placement if ours or trusted else None


def with_promise_of(pod: PodRecord, *known: PodRecord | None) -> PodRecord:
    """Return a bound pod with the promise that we know, instead of the one in its annotation now.

    A bind gives a promise, and the promise stays: later writes to the pod do not change it.
    """
    for earlier in known:
        if earlier is not None and earlier.node == pod.node:
            return replace(
                pod,
                promised=earlier.promised,
                survives_endings=earlier.survives_endings,
                placed=pod.placed if earlier.placed is None else earlier.placed,
            )
    return pod


def manifest_of(pod: PodRecord) -> dict[str, Any]:
    """Return a Pod manifest that :func:`pod_record` reads as this record.

    It has only the parts of a pod that a record keeps.
    """
    request = pod.request.holds if isinstance(pod.request, Malformed) else pod.request
    annotations: dict[str, str] = {}
    if isinstance(pod.request, Malformed):
        annotations[MALFORMED] = pod.request.reason
    spec: dict[str, Any] = {"containers": []}
    if request is not None:
        annotations |= render(request)
        spec = _written_containers(pod, request)
    if pod.promised != NO_CONSTRAINTS or pod.placed is not None:
        annotations[PLACEMENT] = json.dumps(_written_placement(pod))
    if pod.node is not None:
        spec["nodeName"] = pod.node
    if pod.gated:
        spec["schedulingGates"] = [{"name": "gpu-topology.io/held-back"}]
    if pod.reservation is not None:
        kept = pod.reservation
        annotations[RESERVED] = value_of(pod.uid, kept.node, kept.until, kept.victims)
    metadata: dict[str, Any] = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    metadata |= _write_attributes(pod, request, spec)
    if pod.group_ref is not None:
        more, labels, grouped = render_group_ref(pod.group_ref)
        metadata["labels"] = metadata.get("labels", {}) | labels
        annotations |= more
        spec |= grouped
    if annotations:
        metadata["annotations"] = annotations
    if pod.created is not None:
        metadata["creationTimestamp"] = time_text(pod.created)
    if pod.terminating:
        metadata["deletionTimestamp"] = "2000-01-01T00:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": _written_status(pod),
    }


def _written_containers(pod: PodRecord, request: GpuRequest) -> dict[str, Any]:
    spec = containers_of(request)
    limits = (spec["containers"] or spec["initContainers"])[0]["resources"]["limits"]
    if request.by_implicit_name and not pod.unasked:
        limits[request.resource] = "0"
    if not request.only_gpu_plugin:
        limits["example.com/another-device"] = "1"
    if pod.claim_constraints is not None:
        limits[request.resource] = "0"
        spec["resourceClaims"] = [{"name": "of-its-own"}]
    return spec


def _written_status(pod: PodRecord) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": pod.phase}
    if pod.called_unschedulable:
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        if pod.said:
            unscheduled["message"] = pod.said
        status["conditions"] = [unscheduled]
    if pod.has_extended_resource_claim:
        mapping = {"resourceName": resource_of(pod)}
        status["extendedResourceClaimStatus"] = {"requestMappings": [mapping]}
    if pod.started is not None:
        status["startTime"] = time_text(pod.started)
    if pod.refusal is not None:
        status |= {"reason": pod.refusal.reason, "message": pod.refusal.message}
    elif pod.admitted and pod.phase == "Failed":
        status["containerStatuses"] = [{}]
    if pod.attributes.nominated is not None:
        status["nominatedNodeName"] = pod.attributes.nominated
    return status


def _written_placement(pod: PodRecord) -> dict[str, Any]:
    """Return the placement annotation, as far as it is read."""
    promised = Verdict.GUARANTEED if pod.survives_endings else Verdict.EXPECTED
    verdict = promised if pod.promised != NO_CONSTRAINTS else Verdict.NOT_GUARANTEED
    when = {} if pod.placed is None else {"time": time_text(pod.placed)}
    return {"verdict": verdict.value, "node": pod.node, "uid": pod.uid, **when}


def _write_attributes(
    pod: PodRecord, request: GpuRequest | None, spec: dict[str, Any]
) -> dict[str, Any]:
    """Write a pod's attributes into ``spec``, and return those that belong into its metadata.

    :func:`.attributes.attributes_of` reads both.

    What the containers do not ask for already is written as overhead, which counts in the same way.
    """
    attributes = pod.attributes
    if attributes.priority:
        spec["priority"] = attributes.priority
    managed = () if request is None else (request.resource,)
    there = dict(requests_of(Pod(spec=msgspec.convert(spec, PodSpec)), managed))
    more = {
        name: n - there.get(name, 0) for name, n in attributes.requests if n > there.get(name, 0)
    }
    if more:
        spec["overhead"] = {name: f"{amount}m" for name, amount in more.items()}
    spec |= attributes.eligible_nodes.written()
    metadata: dict[str, Any] = {}
    if attributes.labels:
        metadata["labels"] = dict(attributes.labels)
    if attributes.controller:
        metadata["ownerReferences"] = [{"kind": attributes.controller, "controller": True}]
    return metadata
