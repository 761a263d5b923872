"""A plan of evictions that make a guaranteed placement possible, as a value and as text."""

from dataclasses import dataclass

import msgspec

from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName
from topology.core.requests import GpuRequest


class Cost(msgspec.Struct, frozen=True, order=True):
    """The cost of a plan; the cheapest plan has the smallest cost."""

    lost: int = 0  # pods
    moved: int = 0  # pods
    priorities: int = 0  # the sum of the priorities of all of these
    devices: int = 0  # that these pods hold


@dataclass(frozen=True, slots=True)
class Step:
    """One eviction of a plan.

    ``relocation`` is a node with a guaranteed placement for the pod that the controller creates as
    a replacement. It is None if the pod is lost; then ``why`` says why.
    """

    pod: PodRecord
    relocation: NodeName | None = None
    why: str = ""

    def text(self) -> str:
        """Return the step as text."""
        pod, asks = self.pod, ""
        if isinstance(pod.request, GpuRequest):
            asks = f", {pod.request.text}"
        who = f"{pod.full_name} (priority {pod.attributes.priority}{asks})"
        if self.relocation is None:
            return f"{who} is lost: {self.why}"
        controller = pod.attributes.controller
        return (
            f"{who} moves: its {controller} recreates it, and {self.relocation} has a guaranteed "
            "placement for it"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The evictions after which ``node`` has a guaranteed placement for the waiting pod.

    ``terminating`` are pods that terminate already and whose devices the placement needs, too.
    ``resources_unknown`` are those of its nodes for which it is unknown whether CPU and memory are
    free.
    """

    node: NodeName
    steps: tuple[Step, ...]
    cost: Cost
    terminating: tuple[PodRecord, ...] = ()
    resources_unknown: tuple[NodeName, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """The result of the search: a plan, or why there is none.

    ``takes`` is a node that takes the pod without evictions. ``whole`` is False if the search ended
    before it had examined everything: a cheaper plan may exist.
    """

    plan: Plan | None = None
    reason: str = ""
    takes: NodeName | None = None
    whole: bool = True

    def lines(self, pod: PodRecord, beside: int = 0) -> list[str]:
        """Return the advice as lines of text.

        ``beside`` is the number of further members of the pod's group that fit on the node of the
        plan; nothing is reserved for them.
        """
        name = pod.full_name
        if self.takes is not None:
            return [
                f"no pod has to be evicted: {self.takes} has a guaranteed placement for {name} now"
            ]
        if self.plan is None:
            return [f"no pod is worth evicting for {name}: {self.reason}"]
        plan = self.plan
        if not plan.steps:
            terminating = ", ".join(p.full_name for p in plan.terminating)
            lines = [
                f"no pod has to be evicted: {plan.node} has a guaranteed placement once "
                f"these pods have terminated: {terminating}"
            ]
        else:
            count = len(plan.steps)
            pods = "1 pod" if count == 1 else f"{count} pods"
            lines = [f"evict {pods} on {plan.node}: then {name} has a guaranteed placement there"]
            lines += [f"  {step.text()}" for step in plan.steps]
            if beside:
                lines.append(
                    f"{beside} more members of its group fit there, but --evict reserves only "
                    f"the placement of {name}, until it is bound"
                )
        if plan.resources_unknown:
            where = ", ".join(plan.resources_unknown)
            lines.append(f"whether enough CPU and memory are free is unknown for {where}")
        if not self.whole:
            lines.append("not every set of pods was examined, so a cheaper plan may exist")
        return lines
