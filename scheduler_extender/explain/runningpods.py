"""The pods that have GPUs, or will: which GPUs, how these are linked, and what was promised."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import combinations
from typing import Annotated

from msgspec import Meta

from scheduler_extender.explain import Struct
from scheduler_extender.explain.gpustates import GpuHolder, NodeState, Use, link_word
from scheduler_extender.explain.placedpod import promised
from scheduler_extender.explain.wording import asks_text
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import PodUid
from topology.core.graph import NodeTopology


class RunningPod(Struct, frozen=True):
    """A pod on a node, and its GPUs."""

    pod: str
    node: str
    request: Annotated[str, Meta(description="the request in short form; empty if unknown")]
    gpus: Annotated[list[int], Meta(description="driver indices; empty until a report shows them")]
    devices: Annotated[int, Meta(description="the number of devices that the pod holds")]
    unit: Annotated[str, Meta(description="the word for one device, such as GPU")]
    links: Annotated[list[str], Meta(description="the links between these GPUs, the best first")]
    numa_nodes: Annotated[list[int], Meta(description="the NUMA nodes of these GPUs")]
    state: Annotated[str, Meta(description="the state of these GPUs, as in the map")]
    verdict: Annotated[
        str, Meta(description="the verdict with which the pod was bound; empty if unknown")
    ]
    since: Annotated[str | None, Meta(description="when its kubelet admitted the pod")]

    @property
    def mismatched(self) -> bool:
        """Whether the pod requires other GPUs than it has."""
        return self.state == Use.MISMATCHED.value


def running_pods(node: NodeState) -> Iterator[tuple[RunningPod, PodRecord | None]]:
    """Yield the pods with GPUs of a node, each with its record if the pod is known."""
    known = {pod.uid: pod for pod in node.info.pods.every}
    holders: dict[PodUid, dict[int, GpuHolder]] = {}
    for p, gpu in enumerate(node.gpus):
        for holder in gpu.holders:
            holders.setdefault(holder.uid, {})[p] = holder
    for uid, on in holders.items():
        yield _running(node, known.get(uid), on), known.get(uid)
    for pod in node.info.pods.living:
        if pod.uid not in holders:
            yield _running(node, pod, {}), pod


def _running(node: NodeState, pod: PodRecord | None, on: dict[int, GpuHolder]) -> RunningPod:
    first = next(iter(on.values()), None)
    gpus = [node.topology.gpus[p] for p in on] if node.topology else []
    indices = [gpu.index for gpu in gpus]
    return RunningPod(
        pod=first.name if first else pod.full_name if pod else "",
        node=node.name,
        request=asks_text(pod.request) if pod else "",
        gpus=indices,
        devices=sum(holder.devices for holder in on.values()),
        unit=node.gpus[next(iter(on))].unit if on else "GPU",
        links=_links(node.topology, indices) if node.topology else [],
        numa_nodes=sorted({gpu.numa_node for gpu in gpus if gpu.numa_node is not None}),
        state=(first.use if first else Use.ASSUMED).value,
        verdict=promised(pod) if pod else "",
        since=None
        if pod is None or pod.started is None
        else datetime.fromtimestamp(pod.started, UTC).isoformat(),
    )


def _links(topology: NodeTopology, indices: list[int]) -> list[str]:
    """Return the links between these GPUs in words, the best first."""
    pairs = {*combinations(sorted(indices), 2)}
    links = {(link.kind, link.nvlinks, link_word(link)) for link in topology.links
             if (link.a, link.b) in pairs}  # fmt: skip
    return [word for *_, word in sorted(links, reverse=True)]
