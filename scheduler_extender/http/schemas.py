"""What the admin port answers, as ``/openapi.json`` describes it.

These models describe and do not check: an answer over 5,000 nodes is not validated before it is
sent. ``tests/scheduler_extender/http/test_openapi.py`` holds the answers against them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class _Answer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")


class Error(_Answer):
    """Why a request is refused, in one line."""

    error: str


class Healthy(_Answer):
    """The process lives, or is ready."""

    status: Literal["ok"]


class Refusal(_Answer):
    """The refusals of a node's kubelet in a row, of the pods that ask one thing."""

    resource: str
    asks: str
    in_a_row: Annotated[int, Field(ge=0)]
    reason: str
    takes_no_pods: bool
    tried_again_in_seconds: Annotated[int, Field(ge=0)]


class MigInstances(_Answer):
    """Equal MIG instances of one GPU, by its driver index; those are ``free`` that no report shows
    as held."""

    gpu: int
    resource: str
    profile: str
    instances: Annotated[int, Field(ge=0)]
    free: Annotated[int, Field(ge=0)]


class SharedGpu(_Answer):
    """One shared GPU, by its driver index, or one shared MIG instance of it, by its ``profile``.

    ``pods`` are those that a report shows on it; of its ``memory`` they use ``used`` bytes by what
    they say, or by their shares.
    """

    gpu: int
    resource: str
    profile: str
    shares: Annotated[int, Field(ge=0)]
    free: Annotated[int, Field(ge=0)]
    memory: Annotated[int, Field(ge=0)]
    used: Annotated[int, Field(ge=0)]
    pods: list[str]


class NodeInBrief(_Answer):
    """A node: what is wrong, and what is free. What follows ``problem`` is there where it is known.

    ``free`` are driver indices of GPUs that no report shows as held; ``promised`` counts devices of
    pods that are bound and ``unreported``; ``left`` is what remains. They are about whole GPUs, if
    the node has some, and ``mig_instances`` has the others.
    """

    node: str
    stale: bool
    problem: str | None
    refusals: list[Refusal] = []
    not_ready: str = ""
    missing: list[str] = []
    gpus: Annotated[int, Field(ge=0)] = 0
    summary: str = ""
    sequence: int | None = None
    free: list[int] = []
    promised: int = 0
    left: int = 0
    unreported: int = 0
    mig_instances: list[MigInstances] = []
    shared_gpus: list[SharedGpu] = []


class PodInBrief(_Answer):
    """A pod of a node, and what it asks."""

    uid: str
    namespace: str
    name: str
    asks: str


class NodeWhole(NodeInBrief):
    """The same with its pods and its record, a GPUTopology object."""

    pods: list[PodInBrief]
    record: dict[str, Any] = {}


class ContainerSets(_Answer):
    """The GPU sets that one container may get, as driver indices."""

    name: str
    outcomes: list[list[int]]


class Holding(_Answer):
    """A pod that holds some of a node's nearest set: which GPUs, how many devices, and for how many
    seconds, where that is known."""

    pod: str
    gpus: list[int]
    devices: Annotated[int, Field(ge=0)]
    seconds: float | None


class Miss(_Answer):
    """How near a node comes that does not promise what the pod asks for: the set of GPUs that is
    nearest, those of it that are free, and who holds the others. ``have`` of ``wants`` are free."""

    wants: Annotated[int, Field(ge=0)]
    have: Annotated[int, Field(ge=0)]
    words: str
    gpus: list[int]
    free: list[int]
    holders: list[Holding]


class NodeAnswer(_Answer):
    """What one node answers to a pod. ``score`` is null on a node that does not take it, and on one
    that is ``closed``: kube-scheduler will not send the pod there. ``resolvable`` (an eviction may
    help) is null on one that takes it. ``kind`` is the reason without its details, null where the
    node promises what is asked for. ``outcomes`` are the GPU sets that the pod may get, 16 at most,
    and ``setsOmitted`` counts the others."""

    node: str
    verdict: str | None
    outcomes: list[list[int]] = []
    sets_omitted: int = 0
    containers: list[ContainerSets] = []
    kind: str | None = None
    miss: Miss | None = None
    shared_gpus: list[SharedGpu] = []
    score: int | None
    reason: str
    note: str
    lacks: list[str]
    hazards: list[str]
    resolvable: bool | None
    closed: bool


class GroupInBrief(_Answer):
    """A pod's group: how many members there are to be (null where nobody says it) and how many have
    come, the kind of domain that they share, and where they live, by node and by domain."""

    name: str
    gang: bool
    size: int | None
    domain: str | None
    come: int
    nodes: dict[str, int]
    domains: dict[str, int]


class NearMiss(_Answer):
    """A node that comes near, and what it lacks."""

    node: str
    words: str


class Help(_Answer):
    """What would help: the pods ``pods`` of ``node`` end ("end"), or the annotation ``key`` says
    ``value``, or is left out where that is null ("relax"). ``nodes`` would take the pod then."""

    kind: Literal["end", "relax"]
    words: str
    nodes: int
    node: str | None
    pods: list[str]
    key: str | None
    value: str | None


class Placed(_Answer):
    """A pod on its node: the verdict it was bound with (empty where nothing was promised), the GPU
    sets that it could get, those that it got by the last report, and whether they keep the
    promise."""

    node: str
    verdict: str
    sets: list[list[int]]
    got: list[int] | None
    keeps: bool | None
    words: list[str]


class Explanation(_Answer):
    """What every node answers to a pod, and what follows; ``reason`` alone where the pod's
    annotations cannot be read.

    ``refusals`` counts the nodes that do not take the pod by ``kind``, ``doubts`` those that take
    it and promise nothing, ``takes`` all that take it. ``unblocks`` says that evictions may help,
    and ``whole`` is false where there was no time to try all that might. ``closed`` counts those of
    ``takes`` to which kube-scheduler will not send the pod, by selectors, taints or a cordon.
    """

    pod: str
    node: str | None
    headline: str
    reason: str = ""
    asks: str = ""
    request: str = ""
    takes: int = 0
    closed: int = 0
    notes: list[str] = []
    refusals: dict[str, int] = {}
    doubts: dict[str, int] = {}
    nearest: list[NearMiss] = []
    helps: list[Help] = []
    whole: bool = True
    unblocks: bool = False
    placed: Placed | None = None
    group: GroupInBrief | None = None
    nodes: list[NodeAnswer] = []


class PlanCost(_Answer):
    """Pods that are lost, pods that move, the sum of their priorities, and their devices."""

    lost: int
    moved: int
    priorities: int
    devices: int


class Eviction(_Answer):
    """A pod that is to be evicted, and the kind of the object that makes it anew."""

    namespace: str
    pod: str
    uid: str
    priority: int
    controller: str


class PlanStep(Eviction):
    """One eviction: ``home`` is where the pod would go; null where it is lost, and ``why``."""

    home: str | None
    why: str


class EvictionPlan(_Answer):
    """The evictions after which ``node`` has a guaranteed place; ``waitsFor`` are pods that are
    ending already, ``roomUnknown`` nodes of which nobody knows whether CPU and memory are free."""

    node: str
    cost: PlanCost
    steps: list[PlanStep]
    waits_for: list[str]
    room_unknown: list[str] = []


class KeptPlace(_Answer):
    """The place that is kept for the pod; ``holds`` says whether it is there once the ``victims``,
    by UID, have let go, and ``lost`` that it is not and news of the node will hardly change that.
    ``left`` are those of them whom nobody has evicted yet. ``settled`` is false while another place
    may turn out to have been asked for first."""

    node: str
    until: str
    victims: list[str]
    left: list[Eviction]
    holds: bool
    lost: bool
    settled: bool


class Unblocking(_Answer):
    """Whom to evict so that a pod gets a guaranteed place, in words and as a plan.

    ``node`` is where the pod is, ``takes`` a node that takes it as it is. ``plan`` is null where
    nobody has to be evicted, and where that would not help. ``whole`` is false where a cheaper plan
    may exist.
    """

    pod: str
    uid: str
    node: str | None
    text: list[str]
    takes: str | None = None
    plan: EvictionPlan | None = None
    whole: bool = True
    reserved: KeptPlace | None = None


class ReportBody(_Answer):
    """What a kubelet would have reported: a node, its status as in a GPUTopology object, and the
    UIDs of pods that have ended."""

    node: str
    status: dict[str, Any]
    ended_pods: list[str] = []
