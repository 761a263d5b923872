"""The judge of the closed loop. It decides which promises count as broken."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from scheduler_extender.groupreference import NODE
from scheduler_extender.simulator.faults import SLACK, STALE_AFTER
from scheduler_extender.simulator.node import LOST_CLAIM
from scheduler_extender.simulator.pods import PodEntry
from scheduler_extender.simulator.scene import Observer, Scene
from scheduler_extender.state.node.verification import Misprediction
from scheduler_extender.verbs import Binding
from topology.core.devices import DeviceId, Mask, NodeName, PodUid, base_uuid
from topology.core.graph import NodeTopology
from topology.core.links import canonical_product
from topology.core.placement import Verdict, satisfies
from topology.core.requests import Constraints


class Judge(Observer):
    """An observer that compares a pod's promise with the GPUs that its kubelet gave it.

    ``mispredictions`` are those that the extender's verification found. They do not include the
    nodes that have changed in a way that no report could show.
    """

    def __init__(self, scene: Scene) -> None:
        self._clock = scene.clock
        self._tally = scene.tally
        self._living: dict[str, list[PodEntry]] = {}  # the members of each group
        self.mispredictions: list[Misprediction] = []
        self._nodes = scene.nodes
        self._kubelets = scene.kubelets
        self._foreign: dict[NodeName, list[PodEntry]] = {name: [] for name in scene.nodes}
        self._disturbed: dict[NodeName, float] = {}
        self._unsettled: dict[NodeName, float] = {}
        self._views: dict[PodUid, float] = {}

    def disturbed(self, node: NodeName) -> None:
        """Note an event after which neither expected nor guaranteed placements need to hold."""
        self._disturbed[node] = self._unsettled[node] = self._clock.now

    def unsettled(self, node: NodeName) -> None:
        """Note an event after which only guaranteed placements have to hold."""
        self._unsettled[node] = self._clock.now

    def placed(self, entry: PodEntry, binding: Binding, looked: float) -> None:
        """Count the promise to a pod with required constraints. In shadow mode there is none."""
        if not entry.request.required or not binding.placement:
            return
        tally = self._tally
        entry.promise = verdict = json.loads(binding.placement)["verdict"]
        tally.required_placed += 1
        tally.promised[verdict] += 1
        tally.stale += self._clock.now - looked > STALE_AFTER + SLACK
        tally.stale_watch += _watch_was_stale(entry)

    def bound(self, entry: PodEntry) -> None:
        """Count a bound member of a group, and whether it is in another domain than its peers.

        Only peers that still live count.
        """
        group, tally = entry.job.group, self._tally
        if group is None:
            return
        living = [e for e in self._living.get(group.name, []) if not (e.ended or e.gone)]
        living = [e for e in living if not e.record.terminating]
        self._living[group.name] = [*living, entry]
        tally.group_members += 1
        tally.whole_groups += len(living) + 1 == group.size
        if not group.domain or "preferred" in entry.job.manifest["metadata"]["name"]:
            return
        nodes = {e.record.node for e in (*living, entry) if e.record.node}
        domains = nodes if group.domain == NODE else {self._nodes[node].fabric for node in nodes}
        tally.split_groups += len(domains) > 1

    def mispredicted(self, misprediction: Misprediction) -> None:
        """Keep a misprediction, unless the node changed after the report that decided the pod.

        After such a change of a kubelet or a GPU, a report may show another node than the pod met.
        """
        since = self._unsettled.get(NodeName(misprediction.node), 0.0)
        if since <= self._views.get(misprediction.pod.uid, float("inf")):
            self.mispredictions.append(misprediction)

    def admitted(self, entry: PodEntry, held: tuple[int, ...]) -> None:
        """Judge whether the devices that the kubelet gave to a pod keep its promise."""
        node = entry.node
        self._judge(entry, node, held)
        if entry.job.foreign:
            self._foreign[node].append(entry)
        self._add_up_memory(entry, node)

    def refused(self, entry: PodEntry, reason: str) -> None:
        """Judge a pod that its kubelet rejected. A pod that lost its claim breaks no promise."""
        node = entry.node
        if not entry.gone:
            when = self._disturbed if entry.promise else self._unsettled
            if not self._unacknowledged(entry, node, when):
                self._tally.kubelet_refusals[reason] += 1
        if reason != LOST_CLAIM:
            self._judge(entry, node, None)

    def _add_up_memory(self, entry: PodEntry, node: NodeName) -> None:
        """Count the pod if the pods on one of its GPUs now use more than the GPU's memory.

        A pod without ``gpu-memory`` counts as using a share's part of the memory for each share.
        """
        topology, uid = self._nodes[node], entry.record.uid
        replicas = topology.resources[0].replicas
        if replicas == 1:
            return
        memory: dict[str, int] = {gpu.uuid: gpu.memory for gpu in topology.gpus}
        memory |= {part.uuid: part.memory for gpu in topology.gpus for part in gpu.mig_instances}
        foreign = {e.record.uid for e in self._foreign[node]}
        # An unseen pod may take the GPU that another pod would have got.
        unknown = any(other.seen > entry.decided for other in self._foreign[node])
        for unit, pods in self._kubelets[node].sharing().items():
            there = {pod for pod, _, _ in pods}
            if uid not in there:
                continue
            used = sum(
                (request.constraints.gpu_memory or memory[unit] * devices / replicas)
                for _, request, devices in pods
            )
            unseen = (
                unknown or foreign & there or self._unacknowledged(entry, node, self._disturbed)
            )
            if used > memory[unit] + 1 and not unseen:
                self._tally.overcommitted += 1
                self._tally.broken_jobs.append(f"{entry.record.name} on {node}: memory")

    def _keeps(self, entry: PodEntry, node: NodeName, held: tuple[int, ...]) -> bool:
        """Check whether the devices that a kubelet gave to a pod keep its promise."""
        topology, wanted = self._nodes[node], entry.request.constraints
        known = entry.view.report.health if entry.view is not None else ()
        sick = sum(1 << topology.position_of_uuid[h.uuid] for h in known if not h.healthy)
        if topology.resources[0].strategy == "mig":
            ids = self._kubelets[node].held_ids(entry.record.uid)
            return _instances_meet(topology, wanted, ids, sick)
        mask = sum(1 << p for p in held)
        replicas = topology.resources[0].replicas
        if wanted.exclusive_gpus:
            uid = entry.record.uid
            alone = all(
                pods == [(uid, entry.request, replicas)]
                for pods in self._kubelets[node].sharing().values()
                if any(pod == uid for pod, _, _ in pods)
            )
            return alone and satisfies(
                topology.shape, replace(wanted, exclusive_gpus=False), mask, sick=sick
            )
        return satisfies(topology.shape, wanted, mask, sick=sick) and all(
            topology.gpus[p].memory >= _part_wanted(wanted) * replicas for p in held
        )

    def _unacknowledged(
        self, entry: PodEntry, node: NodeName, when: Mapping[NodeName, float]
    ) -> bool:
        """Check whether an event came after the last report that was known at the decision."""
        return entry.view is not None and when.get(node, float("-inf")) > entry.view.looked

    def _judge(self, entry: PodEntry, node: NodeName, held: tuple[int, ...] | None) -> None:
        disturbed = self._unacknowledged(entry, node, self._disturbed)
        if entry.view is not None:
            self._views[entry.record.uid] = entry.view.looked
        if entry.promise is None or entry.job.foreign or entry.gone:
            return
        if held is not None and self._keeps(entry, node, held):
            return
        tally = self._tally
        if (
            entry.record.has_extended_resource_claim
        ):  # bind has read the claim, so nothing excuses other GPUs
            tally.broken[entry.promise] += 1
            tally.broken_jobs.append(f"{entry.record.name} on {node}: {held} by claim")
            return
        expected = entry.promise == Verdict.EXPECTED.value
        if disturbed or (expected and self._unacknowledged(entry, node, self._unsettled)):
            tally.unacknowledged[entry.promise] += 1
            return
        foreign = [other for other in self._foreign[node] if other.seen > entry.decided]
        if not foreign:
            tally.broken[entry.promise] += 1
            tally.broken_jobs.append(f"{entry.record.name} on {node}: {held}")
        elif _watch_was_stale(entry) and all(other.bound < entry.decided for other in foreign):
            # The watch on pods had been failing for a long time when the promise was made.
            tally.unexcused[entry.promise] += 1
        else:
            tally.excused[entry.promise] += 1


def _instances_meet(
    topology: NodeTopology, wanted: Constraints, ids: Sequence[DeviceId], sick: Mask
) -> bool:
    """Check whether MIG instances, or shares of them, meet a pod's constraints.

    It shares no code with the model. It checks each instance that the pod got.
    """
    of = {
        part.uuid: (p, gpu, part)
        for p, gpu in enumerate(topology.gpus)
        for part in gpu.mig_instances
    }
    found = [of[base_uuid(device)] for device in ids]
    gpus = {p for p, _, _ in found}
    nodes = {gpu.numa_node for _, gpu, _ in found}
    several = len(found) > 1
    replicas = topology.resources[0].replicas
    return not (
        any(sick >> p & 1 for p in gpus)
        or (several and (wanted.link is not None or wanted.min_bandwidth is not None))
        or (wanted.same_gpu and len(gpus) > 1)
        or (wanted.spread_gpus and len(gpus) < len(found))
        or (several and wanted.same_numa and (len(nodes) > 1 or None in nodes))
        or any(
            part.memory < max(wanted.least_memory(1), _part_wanted(wanted) * replicas)
            for _, _, part in found
        )
        or not all(_is_meant(f"{gpu.product}-MIG-{part.profile}", wanted) for _, gpu, part in found)
    )


def _part_wanted(wanted: Constraints) -> int:
    """Return the memory that a share's part must have."""
    own = wanted.exclusive_gpus or wanted.gpu_memory is not None
    return 0 if own else wanted.min_gpu_memory or 0


def _is_meant(product: str, wanted: Constraints) -> bool:
    name = canonical_product(product)
    words = name.split("-")
    runs = {"-".join(words[i:j]) for j in range(len(words) + 1) for i in range(j)}
    if "mig" in words:
        runs = {run for run in runs if "mig" in run.split("-")}
    return not wanted.models or any(
        fnmatchcase(name, model) if {*model} & {*"*?"} else model in runs for model in wanted.models
    )


def _watch_was_stale(entry: PodEntry) -> bool:
    """Check whether a watch had been failing for a long time when the pod got its promise."""
    return entry.stale_for > SLACK + 1
