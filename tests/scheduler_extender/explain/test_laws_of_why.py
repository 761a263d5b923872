"""What ``why`` says is true, whatever the cluster: what would help is done, and helps."""

import random
from dataclasses import replace

import msgspec
import pytest

from scheduler_extender.annotations import PREFIX, containers_of, render
from scheduler_extender.explain.explanation import Explanation, explanation_of
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import filter_nodes
from scheduler_extender.wire import ObjectMeta, Pod, PodSpec
from tests.scheduler_extender.evictions.scenes import Held, cluster_of, waiting
from topology.core.devices import MIB, Bytes, GpuResource, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.placement import satisfies
from topology.core.requests import Constraints, GpuRequest, Pattern, Policy, gpu_request
from topology.machines import machine
from topology.machines.mig import cut

MACHINES = ("dgx1-v100", "a100-pcie-4-bridged", "l40s-4", "hgx-h100-4", "ac922-6")
SEEDS = range(100)
GIB = 1024 * MIB


def node(rng: random.Random, name: str) -> NodeTopology:
    found = machine(rng.choice(MACHINES)).topology(name)
    kind = rng.random()
    if kind < 0.15:
        shares = GpuResource("nvidia.com/gpu", "time-slicing", 2)
        return replace(found, resources=(shares,))
    if kind < 0.25 and found.gpus[0].product.startswith(("NVIDIA A100", "NVIDIA H100")):
        return cut(found, ["1g.10gb"] * 3, gpus=[0])
    return found


def cluster(rng: random.Random) -> Cache:
    nodes = {}
    for i in range(rng.randint(1, 4)):
        made = node(rng, f"n{i}")
        whole = [p for p, gpu in enumerate(made.gpus) if gpu.mig_mode == "disabled"]
        rng.shuffle(whole)
        held, number = {}, 0
        while whole and rng.random() < 0.8:
            some = tuple(whole.pop() for _ in range(min(len(whole), rng.randint(1, 3))))
            if made.resources[0].replicas == 1:
                held[f"p{i}-{number}"] = Held(some)
            number += 1
        nodes[made] = held
    return cluster_of(nodes)


def request(rng: random.Random) -> GpuRequest:
    wanted = Constraints(
        link=rng.choice([None, LinkKind.NVLINK, LinkKind.NVLINK, LinkKind.PIX, LinkKind.NODE]),
        min_nvlinks=rng.choice([None, None, None, 2, 4, 18]),
        pattern=rng.choice(list(Pattern)),
        min_gpu_memory=rng.choice([None, None, None, Bytes(30 * GIB), Bytes(200 * GIB)]),
        models=rng.choice([(), (), (), (), ("*a100*",), ("*h200*",)]),
        same_numa=rng.random() < 0.2,
    )
    policy = rng.choice([Policy.REQUIRED, Policy.REQUIRED, Policy.PREFERRED])
    return gpu_request(rng.randint(1, 6), wanted, policy)


def explained(found: Cache, pod: PodRecord) -> Explanation:
    answer = explanation_of(found.snapshot(), pod)
    assert isinstance(answer, Explanation)
    return answer


def test_the_scenes_have_something_to_say() -> None:
    answer = [
        explained(cluster(rng), waiting("w", request(rng))) for rng in map(random.Random, SEEDS)
    ]
    helps = [each for found in answer for each in found.helps]
    assert {each.key for each in helps} >= {"link", "min-nvlinks", "gpu-model", "count", "policy"}
    assert sum(each.kind == "end" for each in helps) >= 15
    assert any(len(each.pods) > 1 for each in helps)
    assert sum(row.miss is not None for found in answer for row in found.nodes) >= 30
    assert len({kind for found in answer for kind in found.rejections}) >= 5


@pytest.mark.parametrize("seed", SEEDS)
def test_the_end_that_would_help_helps(seed: int) -> None:
    rng = random.Random(seed)
    found, pod = cluster(rng), waiting("w", request(rng))
    assert isinstance(pod.request, GpuRequest)
    for each in explained(found, pod).helps:
        if each.kind == "end":
            gone = frozenset(PodUid(name.partition("/")[2]) for name in each.pods)
            info = found.node_info(NodeName(each.node or ""))
            assert decide(info, pod.request, found.settings).rejection is not None
            after = decide(info.without(gone), pod.request, found.settings)
            assert after.rejection is None, each.words
            for one in gone:  # nobody is named in vain
                less = decide(info.without(gone - {one}), pod.request, found.settings)
                assert less.rejection is not None, each.words


@pytest.mark.parametrize("seed", SEEDS)
def test_the_looser_request_that_would_help_helps(seed: int) -> None:
    """By filter's own word, for a pod with these annotations."""
    rng = random.Random(seed)
    found, asks = cluster(rng), request(rng)
    names = sorted(found.snapshot().by_name)
    for each in explained(found, waiting("w", asks)).helps:
        if each.kind != "relax":
            continue
        annotations = render(asks)
        spec = containers_of(asks)
        if each.key == "count":
            spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = each.value
        elif each.value is None:
            del annotations[f"{PREFIX}{each.key}"]
        else:
            annotations[f"{PREFIX}{each.key}"] = each.value
        meta = ObjectMeta("w", "team", "new", annotations=annotations)
        pod = Pod(meta, msgspec.convert(spec, PodSpec))
        taken = filter_nodes(found, pod, names).node_names or []
        assert len(taken) == each.nodes > 0, each.words


@pytest.mark.parametrize("seed", SEEDS)
def test_the_nearest_set_is_one_that_would_do(seed: int) -> None:
    rng = random.Random(seed)
    found, asks = cluster(rng), request(rng)
    for row in explained(found, waiting("w", asks)).nodes:
        miss, topology = row.miss, found.node_info(NodeName(row.node)).topology
        if miss is None or topology is None or not miss.gpus:
            continue
        of = {gpu.index: p for p, gpu in enumerate(topology.gpus)}
        mask = sum(1 << of[index] for index in miss.gpus)
        assert satisfies(topology.shape, asks.constraints, mask)
        held = {index for holder in miss.holders for index in holder.gpus}
        assert not held & set(miss.free)
        if miss.have:
            assert len(miss.free) == miss.have
            assert len(miss.gpus) == miss.wants == asks.count


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_are_counted_once_and_the_answer_is_the_filters(seed: int) -> None:
    rng = random.Random(seed)
    found, asks = cluster(rng), request(rng)
    answer = explained(found, waiting("w", asks))
    assert (
        answer.takes + sum(answer.rejections.values())
        == len(answer.nodes)
        == len(sorted(found.snapshot().by_name))
    )
    refused = {row.node for row in answer.nodes if not row.passes}
    assert refused == {
        name
        for name in sorted(found.snapshot().by_name)
        if decide(found.node_info(name), asks, found.settings).rejection is not None
    }
