"""Exclusive CPUs and memory of pods: from the kubelet's and the kernel's answers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.topology.agent.entries import entry, pod, pods
from topology.agent.model.exclusive import (
    Allocatable,
    holdings,
    numa_config,
    published,
    whole,
)
from topology.agent.model.nodecontext import KubeletConfig
from topology.agent.model.observations import Processors, Unseen
from topology.agent.model.podentries import Entry, NodePod, awaited
from topology.core.devices import PodUid
from topology.core.numa import Holding, MemoryBlock, NumaConfig, NumaNode, cpu_set

NONE = KubeletConfig("restricted", "container", "none", "None", False, False, False)
CPUS = replace(NONE, cpu_manager_policy="static")
MEMORY = replace(NONE, memory_manager_policy="Static")
BOTH = replace(CPUS, memory_manager_policy="Static")

MACHINE = Processors(
    nodes=(cpu_set("0-1,4-5"), cpu_set("2-3,6-7")),
    sockets=(0, 1),
    cores=tuple(cpu_set(f"{core},{core + 4}") for core in range(4)),
)
GIVEN = Allocatable(
    cpu_set("1-7"), {(0, "memory"): 100, (1, "memory"): 200, (1, "hugepages-2Mi"): 8}
)


def test_a_core_with_a_reserved_cpu_is_not_whole() -> None:
    config, unseen = numa_config(BOTH, MACHINE, GIVEN)
    assert unseen == ()
    assert config == NumaConfig(
        nodes=(
            NumaNode(cpu_set("0-1,4-5"), 0, (("memory", 100),)),
            NumaNode(cpu_set("2-3,6-7"), 1, (("hugepages-2Mi", 8), ("memory", 200))),
        ),
        allocatable=cpu_set("1-7"),
        whole_cores=cpu_set("1-3,5-7"),
        threads=2,
        socket_aligned=False,
    )


def test_threads_are_counted_as_the_kubelet_counts() -> None:
    """Five CPUs on three cores: it takes each core to have one."""
    uneven = Processors((cpu_set("0-4"),), (0,), tuple(map(cpu_set, ("0-1", "2-3", "4"))))
    config, _ = numa_config(CPUS, uneven, Allocatable(cpu_set("1-4")))
    assert config is not None
    assert (config.threads, config.whole_cores) == (1, cpu_set("2-4"))


def test_the_option_is_passed_on() -> None:
    config, _ = numa_config(replace(CPUS, socket_aligned=True), MACHINE, GIVEN)
    assert config is not None
    assert config.socket_aligned


@pytest.mark.parametrize(
    ("kubelet", "allocatable"),
    [
        pytest.param(NONE, Allocatable(), id="no manager is static"),
        pytest.param(NONE, GIVEN, id="no manager is static any more"),
        pytest.param(KubeletConfig(), GIVEN, id="nobody could ask for the configuration"),
        pytest.param(BOTH, None, id="the kubelet has not answered"),
    ],
)
def test_without_static_managers_nothing_is_reported(
    kubelet: KubeletConfig, allocatable: Allocatable | None
) -> None:
    assert numa_config(kubelet, MACHINE, allocatable) == (None, ())
    assert not published(kubelet, allocatable)


@pytest.mark.parametrize(
    ("kubelet", "allocatable"),
    [
        pytest.param(CPUS, Allocatable(cpu_set("1-7")), id="CPUs"),
        pytest.param(MEMORY, Allocatable(memory={(0, "memory"): 1}), id="memory"),
        pytest.param(BOTH, GIVEN, id="both"),
    ],
)
def test_one_static_manager_is_enough(kubelet: KubeletConfig, allocatable: Allocatable) -> None:
    config, unseen = numa_config(kubelet, MACHINE, allocatable)
    assert config is not None
    assert config.allocatable == allocatable.cpus
    assert unseen == ()
    assert published(kubelet, allocatable)


HIDDEN: dict[str, tuple[Mapping[str, Any], str]] = {
    "a kubelet that is too old to tell its CPUs": (
        {"allocatable": Allocatable(memory=GIVEN.memory)},
        "the kubelet does not report which CPUs pods may have exclusively",
    ),
    "a kubelet that is too old to tell its memory": (
        {"allocatable": Allocatable(GIVEN.cpus)},
        "the kubelet does not report how much memory pods may have exclusively",
    ),
    "options that nobody could read": (
        {"kubelet": replace(BOTH, socket_aligned=None)},
        "the CPU Manager's option align-by-socket is not known",
    ),
    "a CPU that came after the last look": (
        {"allocatable": replace(GIVEN, cpus=cpu_set("1-7,12-13"))},
        "the kernel does not show the CPUs 12-13",
    ),
    "a NUMA node that came after the last look": (
        {"allocatable": replace(GIVEN, memory={(2, "memory"): 1})},
        "the kernel does not show NUMA node 2",
    ),
    "more NUMA nodes than a kubelet knows": (
        {
            "processors": Processors(
                (cpu_set("0-7"), *[cpu_set("")] * 64), (0,) * 65, (cpu_set("0-7"),)
            )
        },
        "there are 65 NUMA nodes, but a record can have 1 to 64",
    ),
}


@pytest.mark.parametrize(
    ("fields", "cause"), [pytest.param(f, c, id=name) for name, (f, c) in HIDDEN.items()]
)
def test_what_is_not_known_whole_is_unseen(fields: Mapping[str, Any], cause: str) -> None:
    usual = {"kubelet": BOTH, "processors": MACHINE, "allocatable": GIVEN}
    found, unseen = numa_config(**{**usual, **fields})
    assert found is None
    assert unseen == (Unseen("CPUs and memory by NUMA node", cause),)


def test_a_sysfs_that_cannot_be_read_is_unseen() -> None:
    why = Unseen("CPUs by NUMA node", "no such file")
    assert numa_config(BOTH, why, GIVEN) == (None, (why,))
    assert numa_config(NONE, why, GIVEN) == (None, ())
    assert published(BOTH, GIVEN), "who has what is known all the same"


def test_a_kubelet_that_shows_only_some_resources_counts_as_unknown() -> None:
    assert not published(BOTH, Allocatable(GIVEN.cpus))
    assert not published(BOTH, Allocatable(memory=GIVEN.memory))


# Who has what.

BLOCK = MemoryBlock("memory", 5, (0,))


def owns(name: str, cpus: str, *blocks: MemoryBlock, gpu: str = "") -> Entry:
    return replace(entry(name, *filter(None, [gpu])), cpus=cpu_set(cpus), memory=blocks)


def has(name: str, cpus: str, *blocks: MemoryBlock) -> Holding:
    return Holding("ns", name, cpu_set(cpus), blocks)


LISTS: dict[str, tuple[Sequence[Entry], Sequence[Holding], Sequence[str], Sequence[Holding]]] = {
    # the list, what was before, who is alive, what is found
    "pods with and without GPUs": (
        [owns("b", "3", BLOCK), owns("a", "1-2", gpu="G1"), entry("c", "G2"), entry("d")],
        [], [], [has("a", "1-2"), has("b", "3", BLOCK)],
    ),
    "two pods of one name are one": (
        [owns("a", "1", BLOCK), owns("a", "4"), owns("a", "", BLOCK)],
        [], [], [has("a", "1,4", BLOCK, BLOCK)],
    ),
    "who is listed no more has none": (
        [owns("a", "1")], [has("a", "1"), has("b", "2")], [], [has("a", "1")],
    ),
    "but who is alive, while the kubelet may not know it yet, keeps it": (
        [owns("a", "1")], [has("b", "2"), has("c", "3")], ["b"], [has("a", "1"), has("b", "2")],
    ),
    "not if another pod has its CPUs by now": (
        [owns("a", "1-2")], [has("b", "2")], ["b"], [has("a", "1-2")],
    ),
    "nor if it is listed without them": (
        [entry("b")], [has("b", "2")], ["b"], [],
    ),
    "the latest word on a pod counts": (
        [owns("a", "4-5")], [has("a", "1")], ["a"], [has("a", "4-5")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "before", "alive", "expected"),
    [pytest.param(*row, id=name) for name, row in LISTS.items()],
)
def test_exclusive_resources_by_pod(
    entries: Sequence[Entry],
    before: Sequence[Holding],
    alive: Sequence[str],
    expected: Sequence[Holding],
) -> None:
    names = {("ns", name) for name in alive}
    assert holdings(entries, before, names) == tuple(expected)
    assert holdings(entries[::-1], before, names) == tuple(expected)


def test_a_change_is_due_until_a_pod_is_shown_with_all_it_gets() -> None:
    coming = replace(pod("1", "a", 0), own_cpus=3, own_memory=2)
    half, cpus_only = owns("a", "1-2", BLOCK, BLOCK), owns("a", "1-3", BLOCK)
    everything = owns("a", "1-3", BLOCK, BLOCK)

    def due(shown: Entry | None, kubelet: KubeletConfig, known: NodePod = coming) -> bool:
        joined = {} if shown is None else {PodUid("1"): shown}
        return bool(awaited(joined, pods(known), partial(whole, kubelet=kubelet)))

    assert [due(e, BOTH) for e in (None, half, cpus_only, everything)] == [True, True, True, False]
    assert [due(e, CPUS) for e in (None, half, cpus_only)] == [True, True, False]
    assert [due(e, MEMORY) for e in (None, half, cpus_only)] == [True, False, True]
    assert not due(None, NONE), "nobody gives it any"
    assert not due(None, BOTH, replace(coming, ended=True)), "it was refused"
    assert due(everything, BOTH, replace(coming, ended=True))
    assert due(everything, BOTH, replace(coming, terminating=True))


def test_a_pod_without_a_pod_object_is_followed_until_it_is_gone() -> None:
    shown = partial(whole, kubelet=BOTH)
    assert awaited({PodUid("1"): owns("a", "1")}, {}, shown) == {"1"}
    assert awaited({PodUid("1"): entry("a")}, {}, shown) == frozenset()
