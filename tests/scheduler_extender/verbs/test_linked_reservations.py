"""Places that are kept on machines where not every pair is linked: they stay places of linked GPUs.

A group waits for members that need linked GPUs. Another group or gang comes to the same nodes, is
sent wherever filter lets it, and gets what NVIDIA's plugin hands out. Its members are bound all or
none, and then the first group's members come: each has its place.
"""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import record_of
from tests.scheduler_extender.verbs.racks import Scheduler, member
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest, gpu_request
from topology.emulation import EmulatedKubelet
from topology.machines import machine

BLOCK = {"group-domain": "example.com/block"}
GANG = {"scheduling.x-k8s.io/pod-group": "h"}


class Machines(Scheduler):
    """Nodes of one kind in one block, on which some GPUs are held."""

    def __init__(self, kind: str, count: int, rng: random.Random) -> None:
        super().__init__({})
        self.rng = rng
        self.kubelets: dict[str, EmulatedKubelet] = {}
        for i in range(count):
            node = machine(kind).topology(f"n{i}")
            self.names.append(node.name)
            kubelet = self.kubelets[node.name] = EmulatedKubelet(node, rng)
            for j in range(rng.randint(0, len(node.gpus) // 2)):
                uid = f"held-{i}-{j}"
                kubelet.admit(PodUid(uid), "default", uid, gpu_request(1))
            self.report(node.name)
            labels = {"example.com/block": "x"}
            self.cluster.put_node(NodeName(node.name), NodeObject(labels=labels))

    def report(self, name: str) -> None:
        """The node's agent reports."""
        kubelet = self.kubelets[name]
        self.cluster.put_record(kubelet.topology, kubelet.report())

    def starts(self, manifest: dict[str, Any], name: str) -> None:
        """The kubelet admits a pod that is bound; the agent reports it now or later."""
        found: PodRecord = record_of(manifest)
        assert isinstance(found.request, GpuRequest)
        self.kubelets[name].admit(found.uid, found.namespace, found.name, found.request)
        if self.rng.random() < 0.7:
            self.report(name)

    def runs(self, manifest: dict[str, Any]) -> bool:
        """One cycle of scheduling, and the kubelet; whether the pod has a node."""
        node = self.place(manifest)
        if node:
            self.starts(manifest, node)
        return bool(node)

    def runs_whole(self, pods: list[dict[str, Any]], gpus: int) -> None:
        """A gang's cycle: all members are bound, or none."""
        goes = self.sent(pods, gpus)
        if len(goes) == len(pods):
            for each, name in self.rng.sample(list(zip(pods, goes, strict=True)), len(pods)):
                assert self.bind(each, name) == "", "the gang is bound in part"
                self.starts(each, name)

    def rest_runs(self, pods: list[dict[str, Any]]) -> None:
        """The members come that a group has waited for."""
        for name in self.names:
            self.report(name)
        for each in pods:
            assert self.runs(each), "its place was spoilt"
            for name in self.names:
                self.report(name)

    def sent(self, pods: list[dict[str, Any]], gpus: int) -> list[str]:
        """Where a gang's scheduler sends its members, each as badly as it may; fewer if one has no
        node."""
        goes: list[str] = []
        for each in pods:
            fits = [n for n in self.names if self.free(n) - gpus * goes.count(n) >= gpus]
            passing = self.filter(each, fits).node_names or () if fits else ()
            if not passing:
                break
            goes.append(self.rng.choice(list(passing)))
        return goes

    def free(self, name: str) -> int:
        """GPUs that the scheduler counts as free."""
        node = self.kubelets[name].topology
        return len(node.gpus) - sum(
            len(a.device_ids) for a in self.kubelets[name].report().allocations
        )


@pytest.mark.parametrize("kind", ["dgx1-v100", "a100-pcie-4-bridged", "ac922-6", "hgx-h100-8"])
@pytest.mark.parametrize("seed", range(40))
def test_a_reservation_stays_one_of_linked_gpus(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    there = Machines(kind, rng.randint(1, 3), rng)
    waits = waiting(rng.choice((2, 2, 3, 4)))
    if not there.runs(waits[0]):
        return
    gpus, size = rng.choice((1, 2, 2, 3)), rng.randint(2, 4)
    link = rng.choice(("", "nvlink"))
    if rng.random() < 0.7:
        there.runs_whole(coming(size, gpus, link, GANG), gpus)
    else:
        for each in coming(size, gpus, link):
            there.runs(each)
    there.rest_runs(waits[1:])


@pytest.mark.parametrize("seed", [*range(10), 1244])
def test_pairs_that_need_no_link_leave_the_linked_ones(seed: int) -> None:
    """As many GPUs are left wherever they go, and not as many linked pairs. Play 1244 ended in a
    gang that was bound in part."""
    rng = random.Random(f"dgx1-v100 {seed}")
    there = Machines("dgx1-v100", rng.randint(1, 3), rng)
    waits = waiting(2)
    if not there.runs(waits[0]):
        return
    gpus, size = rng.choice((2, 4)), rng.randint(2, 5)
    there.runs_whole(coming(size, gpus, "", GANG), gpus)
    there.rest_runs(waits[1:])


def waiting(gpus: int) -> list[dict[str, Any]]:
    return [member(f"g{i}", "g", 3, gpus, BLOCK) for i in range(3)]


def coming(
    size: int, gpus: int, link: str, gang: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    annotations = {**BLOCK, "link": link}
    return [
        member(f"h{i}", "" if gang else "h", size, gpus, annotations, gang) for i in range(size)
    ]
