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


class NodeInBrief(_Answer):
    """A node: what is wrong, and what is free. What follows ``problem`` is there where it is known.

    ``free`` are driver indices of GPUs that no report shows as held; ``promised`` counts devices of
    pods that are bound and ``unreported``; ``left`` is what remains.
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


class NodeAnswer(_Answer):
    """What one node answers to a pod. ``score`` is null on a node that does not take it,
    ``resolvable`` (an eviction may help) on one that does."""

    node: str
    verdict: str | None
    score: int | None
    reason: str
    note: str
    lacks: list[str]
    hazards: list[str]
    resolvable: bool | None


class Explanation(_Answer):
    """What every node answers to a pod; ``reason`` alone where the pod's annotations cannot be
    read."""

    pod: str
    node: str | None
    reason: str = ""
    asks: str = ""
    nodes: list[NodeAnswer] = []


class ReportBody(_Answer):
    """What a kubelet would have reported: a node, its status as in a GPUTopology object, and the
    UIDs of pods that have ended."""

    node: str
    status: dict[str, Any]
    ended_pods: list[str] = []
