"""A node in brief, as in ``/v1/nodes``: its problems, and its free devices.

For shared GPUs: the pods on each, and how much memory they use together.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, structs

from scheduler_extender.explain import Struct
from scheduler_extender.explain.wording import GONE_POD, asks_text, pod_names
from scheduler_extender.state.answers.decision import Refusals
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from topology import codec
from topology.core.devices import MIB, GpuResource
from topology.core.devicesets import count, gpus
from topology.core.mig import MIG
from topology.core.placement import Rejection, used_memory


class SharedGpu(Struct, frozen=True):
    """One shared GPU, or one shared MIG instance of it."""

    gpu: Annotated[int, Meta(description="the GPU's index in the driver")]
    resource: str
    profile: Annotated[
        str, Meta(description="the profile of the MIG instance; empty for a whole GPU")
    ]
    shares: Annotated[int, Meta(ge=0)]
    free: Annotated[
        int, Meta(ge=0, description="the number of shares that no report shows as held")
    ]
    memory: Annotated[int, Meta(ge=0, description="bytes")]
    used: Annotated[
        int,
        Meta(ge=0, description="bytes that its pods use, by their gpu-memory or by their shares"),
    ]
    pods: Annotated[list[str], Meta(description="the pods that a report shows on it")]


def shared_gpus(info: NodeInfo, offer: Offer) -> list[SharedGpu]:
    """Return the GPUs that a node shares among pods by one offer; empty if it shares none."""
    if offer.resource.replicas == 1:
        return []
    devices, now, profile_at = offer.devices, offer.availability, _profiles(offer)
    names = pod_names(info)
    memories = used_memory(offer.kubelet, now)
    return [
        SharedGpu(
            gpu=devices.indices_of[p],
            resource=offer.resource.name,
            profile=profile_at[p],
            shares=shares,
            free=count(now.free, p, now.width),
            memory=memory.memory,
            used=memory.used,
            pods=sorted(
                names.get(uid, GONE_POD)
                for uid, pool in offer.ledger.shown.items()
                if count(pool, p, now.width)
            ),
        )
        for p, (shares, memory) in enumerate(zip(devices.counts, memories, strict=True))
    ]


def _profiles(offer: Offer) -> dict[int, str]:
    """Return the profiles of MIG instances by the positions of devices; empty for a GPU."""
    gpus = offer.topology.gpus
    profiles = {part.uuid: part.profile for gpu in gpus for part in gpu.mig_instances}
    return {at: profiles.get(uuid, "") for uuid, at in offer.devices.position_of.items()}


def memory_in_use(gpus: Iterable[SharedGpu]) -> str:
    """Return the GPUs in use, and how much of their memory is used, in a line.

    >>> pods = ["a/b", "a/c"]
    >>> memory_in_use([SharedGpu(0, "nvidia.com/gpu", "", 4, 2, 48 * MIB, 30 * MIB, pods)])
    'GPU 0: 30 of 48 MiB used by 2 pods'
    """
    return ", ".join(
        f"GPU {gpu.gpu}{f' ({gpu.profile})' if gpu.profile else ''}: "
        f"{gpu.used // MIB} of {gpu.memory // MIB} MiB used by {len(gpu.pods)} "
        f"pod{'s' if len(gpu.pods) != 1 else ''}"
        for gpu in gpus
        if gpu.pods
    )


class Refusal(Struct, frozen=True):
    """The consecutive refusals of a node's kubelet, for pods with one request."""

    resource: str
    request: str
    in_a_row: Annotated[int, Meta(ge=0)]
    reason: str
    takes_no_pods: bool
    tried_again_in_seconds: Annotated[int, Meta(ge=0)]


class MigInstances(Struct, frozen=True):
    """Equal MIG instances of one GPU."""

    gpu: Annotated[int, Meta(description="the GPU's index in the driver")]
    resource: str
    profile: str
    instances: Annotated[int, Meta(ge=0)]
    free: Annotated[
        int, Meta(ge=0, description="the number of devices that no report shows as held")
    ]


class PodInBrief(Struct, frozen=True):
    """A pod of a node, and its request."""

    uid: str
    namespace: str
    name: str
    request: str


class NodeInBrief(Struct, frozen=True):
    """A node: its problems, and its free devices.

    The fields after ``problem`` are present if they are known. If the node has whole GPUs,
    ``free``, ``promised``, ``remaining`` and ``unacknowledged`` are about these.
    """

    node: str
    stale: bool
    problem: str | None
    maintenance: Annotated[
        bool,
        Meta(description="whether the GPU operator is changing the node's driver or MIG layout"),
    ] = False
    refusals: list[Refusal] = []
    not_ready: str = ""
    missing: Annotated[list[str], Meta(description="the GPUs that do not answer")] = []
    gpus: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    states: Annotated[
        dict[str, int] | UnsetType,
        Meta(
            description="the number of GPUs by state, the same as in the commands, the map and the "
            "metrics"
        ),
    ] = UNSET
    summary: str | UnsetType = UNSET
    sequence: int | UnsetType | None = UNSET
    free: Annotated[
        list[int] | UnsetType,
        Meta(description="driver indices of the GPUs that no report shows as held"),
    ] = UNSET
    promised: Annotated[
        int | UnsetType, Meta(description="devices of pods that are bound and unacknowledged")
    ] = UNSET
    remaining: Annotated[
        int | UnsetType, Meta(description="the number of devices that remain for other pods")
    ] = UNSET
    unacknowledged: Annotated[
        int | UnsetType, Meta(description="the pods that no report shows yet")
    ] = UNSET
    mig_instances: list[MigInstances] = []
    shared_gpus: list[SharedGpu] = []


class NodeWhole(NodeInBrief, frozen=True, kw_only=True):
    """The same with the node's pods and its record, a GPUTopology object."""

    pods: list[PodInBrief]
    record: dict[str, Any] = {}


def in_brief(cluster: Cache, info: NodeInfo, states: Mapping[str, int]) -> NodeInBrief:
    """Return a node in brief.

    ``cluster`` counts faults. ``states`` are the node's GPUs by state.
    """
    topology, report, problem = info.topology, info.report, info.record.problem
    found = NodeInBrief(
        node=info.name,
        stale=info.record.stale,
        problem=problem,
        maintenance=info.node_object.maintained,
        refusals=[*_refusals(cluster, info)],
    )
    if topology is None:
        return found
    rooms: list[dict[str, Any]] = []
    instances: list[MigInstances] = []
    shared: list[SharedGpu] = []
    for served in topology.resources:
        try:
            offer = info.last_offer(served.name)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            cluster.faults.note(info.name, error)
            problem = f"internal error: {type(error).__name__}"
            continue
        if isinstance(offer, Rejection):
            problem = info.record.contradiction(served.name)
            continue
        now = offer.availability
        rooms.append(
            {
                "free": list(offer.devices.indices(gpus(now.free, now.width))),
                "promised": sum(pod.held for pod in now.unacknowledged if not pod.terminated),
                "remaining": max(0, now.devices_left),
                "unacknowledged": len(now.unacknowledged),
            }
        )
        instances += _instances(offer, served)
        shared += shared_gpus(info, offer)
    return structs.replace(
        found,
        problem=problem,
        not_ready=report.not_ready if report is not None else "",
        missing=[gpu.name for gpu in info.record.missing],
        gpus=len(topology.gpus),
        states=dict(states),
        summary=topology.summary(),
        sequence=report.sequence if report is not None else None,
        mig_instances=instances,
        shared_gpus=shared,
        **(rooms[0] if rooms else {}),  # of several resources the first: whole GPUs, if any
    )


def whole(cluster: Cache, info: NodeInfo, states: Mapping[str, int]) -> NodeWhole:
    """Return a node with its pods and its record."""
    topology = info.topology
    return NodeWhole(
        **structs.asdict(in_brief(cluster, info, states)),
        pods=[
            PodInBrief(pod.uid, pod.namespace, pod.name, asks_text(pod.request))
            for pod in info.pods.every
        ],
        record=codec.encode(topology, info.report) if topology is not None else {},
    )


def _instances(offer: Offer, served: GpuResource) -> Iterator[MigInstances]:
    """Yield the MIG instances that a node serves as one resource; none of any other resource."""
    if served.strategy != MIG:
        return
    devices, now, profile_at = offer.devices, offer.availability, _profiles(offer)
    for p, instances in enumerate(devices.counts):
        free = count(now.free, p, now.width)
        yield MigInstances(devices.indices_of[p], served.name, profile_at[p], instances, free)


def _refusals(cluster: Cache, info: NodeInfo) -> Iterator[Refusal]:
    """Yield the consecutive refusals of the kubelet, and when a pod is tried again.

    If two different requests were refused, the refusals of all pods come first. Then follow those
    of each request.
    """
    ignored = cluster.settings.refusals is Refusals.IGNORE
    for resource, backoffs in info.history.backoffs.items():
        rows = [
            (
                # The request, with what static CPU and Memory Managers would give for it.
                ", ".join(filter(None, (kind.text, kind.exclusive.text))),
                info.refusing(kind) is not None,
                backoff,
            )
            for kind, backoff in backoffs.of_kind.items()
        ]
        if backoffs.of_node is not None:
            last = backoffs.of_node.refusals[-1].kind
            rows.insert(0, ("anything", info.refusing(last) is not None, backoffs.of_node))
        for asks, shut, backoff in rows:
            paused = max(0.0, backoff.until - cluster.clock()) if backoff.paused else 0.0
            yield Refusal(
                resource=resource,
                request=asks,
                in_a_row=len(backoff.refusals),
                reason=backoff.reason,
                takes_no_pods=shut and not ignored,
                tried_again_in_seconds=round(paused),
            )
