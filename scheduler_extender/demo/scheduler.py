"""Plays kube-scheduler for the demo: its own count rule, then filter, prioritize and bind."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import urllib3

from scheduler_extender.annotations import PREFIX, Asks, parse
from scheduler_extender.demo.kubelet import Kubelets
from scheduler_extender.simulator.asking import pick
from scheduler_extender.wire import BindingArgs, BindingResult, FilterResult, HostPriority, Pod
from topology.codec import encode_report
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.placement import satisfies
from topology.core.requests import GpuRequest

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one pod: its node, None where it waits.

    ``required`` says whether it needs more than a count of GPUs, and ``met`` whether those that it
    got are what it asks; None where nobody can tell what that is. ``got`` and ``possible`` are
    driver indices.
    """

    pod: str
    asks: str = ""
    node: str | None = None
    required: bool = False
    met: bool | None = None
    verdict: str = ""
    got: tuple[int, ...] = ()
    possible: tuple[tuple[int, ...], ...] = ()

    @property
    def wrong(self) -> bool:
        """Whether it got other GPUs than it needs."""
        return self.required and self.met is False


def met(topology: NodeTopology, request: GpuRequest, taken: Sequence[int]) -> bool:
    """Whether the GPUs at these positions, one for each device, are what a pod asks."""
    mask = sum(1 << p for p in set(taken))
    replicas = topology.resources[0].replicas
    return satisfies(topology.shape, request.constraints, mask, count=len(taken), replicas=replicas)


class Scheduler:
    """One pod after the other, over one kept connection. ``spent`` gives seconds per verb.

    ``placement`` gives the placement annotation written to a pod, by its UID.
    """

    def __init__(
        self, url: str, admin: str, kubelets: Kubelets, placement: Callable[[str], str]
    ) -> None:
        self._placement = placement
        self._url = url
        self._admin = admin
        self._kubelets = kubelets
        self._http = urllib3.PoolManager(retries=False)
        self.spent: dict[str, list[float]] = {"filter": [], "prioritize": [], "bind": []}

    def schedule(self, pod: dict[str, Any]) -> Outcome:
        """Place one pod, let its kubelet admit it, and compare what it got with the promise."""
        name = pod["metadata"]["name"]
        read = parse(msgspec.convert(pod, Pod))
        request = read.request if isinstance(read, Asks) else None
        count = 0 if request is None else request.count
        asks = _asked(pod) if request is None else request.text
        offered: list[str] = [n for n in self._kubelets.nodes if self._kubelets.free(n) >= count]
        node = None
        if offered:
            node = pick(self, pod, offered, lambda scores: max(scores, key=scores.__getitem__)).node
        if node is None:
            return Outcome(name, asks)
        metadata = pod["metadata"]
        args = BindingArgs(name, metadata["namespace"], metadata["uid"], node)
        bound = self._post("bind", args, BindingResult)
        if bound.error:
            return Outcome(name, asks)
        return self._admit(pod, NodeName(node), request, asks)

    def filter(self, pod: dict[str, Any], names: list[str]) -> FilterResult:
        """The answer of filter."""
        return self._post("filter", {"Pod": pod, "NodeNames": names}, FilterResult)

    def prioritize(self, pod: dict[str, Any], names: list[str]) -> Mapping[str, float]:
        """The scores."""
        rows = self._post("prioritize", {"Pod": pod, "NodeNames": names}, list[HostPriority])
        return {row.host: row.score for row in rows}

    def _admit(self, pod: dict[str, Any], node: NodeName, request: Any, asks: str) -> Outcome:
        assert isinstance(request, GpuRequest)  # noqa: S101 (a malformed pod passes nowhere)
        placement = json.loads(self._placement(pod["metadata"]["uid"]))
        taken = self._kubelets.admit(node, pod, request)
        self._http.request(
            "POST",
            f"{self._admin}/v1/reports",
            body=json.dumps({"node": node, "status": encode_report(self._kubelets.report(node))}),
        )
        topology = self._kubelets.nodes[node]
        return Outcome(
            pod["metadata"]["name"],
            asks,
            node,
            request.required,
            met(topology, request, taken),
            placement["verdict"],
            topology.indices(sum(1 << p for p in set(taken))),
            tuple(tuple(each) for each in placement["sets"]),
        )

    def _post(self, verb: str, body: object, answers: type[Answer]) -> Answer:
        payload = msgspec.json.encode(body)
        started = time.perf_counter()
        answer = self._http.request("POST", f"{self._url}/scheduler/{verb}", body=payload)
        self.spent[verb].append(time.perf_counter() - started)
        if answer.status != 200:
            raise RuntimeError(f"{verb}: {answer.status} {answer.data!r}")
        return msgspec.json.decode(answer.data, type=answers)


def _asked(pod: dict[str, Any]) -> str:
    """What a pod with a bad annotation asked, as it wrote it."""
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    written = " ".join(
        f"{key.removeprefix(PREFIX)}={value}"
        for key, value in pod["metadata"]["annotations"].items()
    )
    return f"{limits['nvidia.com/gpu']} GPUs {written}"
