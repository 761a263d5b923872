"""A plan: whom to evict so that a guaranteed place appears, as a value and in words."""

from dataclasses import dataclass

import msgspec

from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName
from topology.core.requests import GpuRequest


class Cost(msgspec.Struct, frozen=True, order=True):
    """What a plan costs; the cheapest is the smallest."""

    lost: int = 0  # pods
    moved: int = 0  # pods
    priorities: int = 0  # the sum of all of theirs
    devices: int = 0  # that they hold


@dataclass(frozen=True, slots=True)
class Step:
    """One eviction. ``relocation`` is a node with a guaranteed place for the pod that its
    controller makes anew; None where the pod is lost, and ``why`` says why."""

    pod: PodRecord
    relocation: NodeName | None = None
    why: str = ""

    def text(self) -> str:
        """The step in words."""
        pod, asks = self.pod, ""
        if isinstance(pod.request, GpuRequest):
            asks = f", {pod.request.text}"
        who = f"{pod.full_name} (priority {pod.attributes.priority}{asks})"
        if self.relocation is None:
            return f"{who} is lost: {self.why}"
        controller = pod.attributes.controller
        return f"{who} moves: its {controller} makes it anew, {self.relocation} has a place"


@dataclass(frozen=True, slots=True)
class Plan:
    """The evictions after which ``node`` has a guaranteed place for the waiting pod.

    ``terminating`` are pods that are on their way out already, whose devices the place needs, too.
    ``beside`` is how many more members of its group get a place on the node: nobody keeps theirs.
    ``resources_unknown`` are those of its nodes of which nobody knows whether CPU and memory are
    free.
    """

    node: NodeName
    steps: tuple[Step, ...]
    cost: Cost
    terminating: tuple[PodRecord, ...] = ()
    resources_unknown: tuple[NodeName, ...] = ()
    beside: int = 0


@dataclass(frozen=True, slots=True)
class Advice:
    """What the search advises: a plan, or why there is none.

    ``takes`` is a node that takes the pod as it is. ``whole`` is false where the search was ended
    before everything had been looked at: a cheaper plan may exist.
    """

    plan: Plan | None = None
    reason: str = ""
    takes: NodeName | None = None
    whole: bool = True

    def lines(self, pod: PodRecord) -> list[str]:
        """The advice in words."""
        name = pod.full_name
        if self.takes is not None:
            return [f"nobody has to be evicted: {self.takes} has a guaranteed place for {name} now"]
        if self.plan is None:
            return [f"nobody is worth evicting for {name}: {self.reason}"]
        found = self.plan
        if not found.steps:
            terminating = ", ".join(p.full_name for p in found.terminating)
            lines = [
                f"nobody has to be evicted: {found.node} has a place once {terminating} let go"
            ]
        else:
            count = len(found.steps)
            pods = "1 pod" if count == 1 else f"{count} pods"
            lines = [f"evict {pods} on {found.node}: then {name} has a guaranteed place there"]
            lines += [f"  {step.text()}" for step in found.steps]
            if found.beside:
                lines.append(
                    f"room for {found.beside} more of its group is counted there; --evict keeps "
                    f"only the place of {name}, until it is bound"
                )
        if found.resources_unknown:
            where = ", ".join(found.resources_unknown)
            lines.append(f"whether CPU and memory are free is not known of {where}")
        if not self.whole:
            lines.append("not every set of pods was looked at: a cheaper plan may exist")
        return lines
