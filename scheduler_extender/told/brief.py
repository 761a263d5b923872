"""A node in brief, as ``/v1/nodes`` tells it: what is wrong with it, and what is free."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, structs

from scheduler_extender.state.answers.decision import Refusals
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.facts import NodeFacts, Offer
from scheduler_extender.told.sharing import SharedGpu, shared_gpus
from scheduler_extender.told.struct import Struct
from scheduler_extender.told.words import asks_text
from topology import codec
from topology.core.devices import GpuResource
from topology.core.mig import MIG
from topology.core.placement import Rejection
from topology.core.pools import count, gpus
from topology.core.requests import GpuRequest


class Refusal(Struct, frozen=True):
    """The refusals of a node's kubelet in a row, of the pods that ask one thing."""

    resource: str
    asks: str
    in_a_row: Annotated[int, Meta(ge=0)]
    reason: str
    takes_no_pods: bool
    tried_again_in_seconds: Annotated[int, Meta(ge=0)]


class MigInstances(Struct, frozen=True):
    """Equal MIG instances of one GPU."""

    gpu: Annotated[int, Meta(description="the driver's index")]
    resource: str
    profile: str
    instances: Annotated[int, Meta(ge=0)]
    free: Annotated[int, Meta(ge=0, description="those that no report shows as held")]


class PodInBrief(Struct, frozen=True):
    """A pod of a node, and what it asks."""

    uid: str
    namespace: str
    name: str
    asks: str


class NodeInBrief(Struct, frozen=True):
    """A node: what is wrong, and what is free. What follows ``problem`` is there where it is known.

    ``free``, ``promised``, ``left`` and ``unreported`` are about whole GPUs, if the node has some.
    """

    node: str
    stale: bool
    problem: str | None
    maintenance: Annotated[
        bool, Meta(description="the GPU operator changes its driver or MIG layout")
    ] = False
    refusals: list[Refusal] = []
    not_ready: str = ""
    missing: Annotated[list[str], Meta(description="GPUs that do not answer")] = []
    gpus: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    states: Annotated[
        dict[str, int] | UnsetType,
        Meta(description="GPUs by how they stand, counted as by the commands, map and metrics"),
    ] = UNSET
    summary: str | UnsetType = UNSET
    sequence: int | UnsetType | None = UNSET
    free: Annotated[
        list[int] | UnsetType, Meta(description="driver indices that no report shows as held")
    ] = UNSET
    promised: Annotated[
        int | UnsetType, Meta(description="devices of pods that are bound and unreported")
    ] = UNSET
    left: Annotated[int | UnsetType, Meta(description="devices that remain for others")] = UNSET
    unreported: Annotated[int | UnsetType, Meta(description="pods that no report shows")] = UNSET
    mig_instances: list[MigInstances] = []
    shared_gpus: list[SharedGpu] = []


class NodeWhole(NodeInBrief, frozen=True, kw_only=True):
    """The same with its pods and its record, a GPUTopology object."""

    pods: list[PodInBrief]
    record: dict[str, Any] = {}


def in_brief(cluster: Cache, facts: NodeFacts, states: Mapping[str, int]) -> NodeInBrief:
    """A node in brief. ``cluster`` counts faults; ``states`` are the node's GPUs by how they
    stand."""
    topology, report, problem = facts.topology, facts.report, facts.record.problem
    refusals = [*_refusals(cluster, facts)]
    maintenance = facts.node_object.maintained
    if topology is None:
        return NodeInBrief(
            node=facts.name,
            stale=facts.record.stale,
            problem=problem,
            maintenance=maintenance,
            refusals=refusals,
        )
    rooms: list[dict[str, Any]] = []
    instances: list[MigInstances] = []
    shared: list[SharedGpu] = []
    for served in topology.resources:
        try:
            offer = facts.last_offer(served.name)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            cluster.faults.note(facts.name, error)
            problem = f"internal error: {type(error).__name__}"
            continue
        if isinstance(offer, Rejection):
            problem = facts.record.contradiction(served.name)
            continue
        rooms.append(_room(offer))
        instances += _instances(offer, served)
        shared += shared_gpus(facts, offer)
    return NodeInBrief(
        node=facts.name,
        stale=facts.record.stale,
        problem=problem,
        maintenance=maintenance,
        refusals=refusals,
        not_ready=report.not_ready if report is not None else "",
        missing=[gpu.name for gpu in facts.record.missing],
        gpus=len(topology.gpus),
        states=dict(states),
        summary=topology.summary(),
        sequence=report.sequence if report is not None else None,
        mig_instances=instances,
        shared_gpus=shared,
        **(rooms[0] if rooms else {}),  # of several resources the first: whole GPUs, if any
    )


def whole(cluster: Cache, facts: NodeFacts, states: Mapping[str, int]) -> NodeWhole:
    """A node with its pods and its record."""
    topology = facts.topology
    return NodeWhole(
        **structs.asdict(in_brief(cluster, facts, states)),
        pods=[
            PodInBrief(pod.uid, pod.namespace, pod.name, asks_text(pod.request))
            for pod in facts.pods.every
        ],
        record=codec.encode(topology, facts.report) if topology is not None else {},
    )


def _room(offer: Offer) -> dict[str, Any]:
    """What is free of one resource, and what is left of it."""
    now = offer.availability
    return {
        "free": list(offer.devices.indices(gpus(now.free, now.width))),
        "promised": sum(pod.held for pod in now.unreported if not pod.departed),
        "left": max(0, now.devices_left),
        "unreported": len(now.unreported),
    }


def _instances(offer: Offer, served: GpuResource) -> Iterator[MigInstances]:
    """The MIG instances that a node serves as one resource; none of any other resource."""
    if served.strategy != MIG:
        return
    devices, now, node = offer.devices, offer.availability, offer.topology
    profiles = {part.uuid: part.profile for gpu in node.gpus for part in gpu.mig_instances}
    profile_at = {at: profiles[uuid] for uuid, at in devices.position_of.items()}
    for p, instances in enumerate(devices.counts):
        free = count(now.free, p, now.width)
        yield MigInstances(devices.indices_of[p], served.name, profile_at[p], instances, free)


def _refusals(cluster: Cache, facts: NodeFacts) -> Iterator[Refusal]:
    """The kubelet's refusals in a row, and when a pod is tried again.

    First of all pods, if two things were refused; then of those that ask one thing.
    """
    ignored = cluster.settings.refusals is Refusals.IGNORE
    for resource, backoffs in facts.history.backoffs.items():
        rows = [
            (_kind(kind), facts.refusing(kind) is not None, backoff)
            for kind, backoff in backoffs.of_kind.items()
        ]
        if backoffs.of_node is not None:
            last = backoffs.of_node.refusals[-1].kind
            rows.insert(0, ("anything", facts.refusing(last) is not None, backoffs.of_node))
        for asks, shut, backoff in rows:
            paused = max(0.0, backoff.until - cluster.clock()) if backoff.paused else 0.0
            yield Refusal(
                resource=resource,
                asks=asks,
                in_a_row=len(backoff.refusals),
                reason=backoff.reason,
                takes_no_pods=shut and not ignored,
                tried_again_in_seconds=round(paused),
            )


def _kind(kind: GpuRequest) -> str:
    """What pods of a kind ask, with what static CPU and Memory Managers would give them."""
    return ", ".join(filter(None, (kind.text, kind.exclusive.text)))
