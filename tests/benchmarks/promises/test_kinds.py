"""What each kind of node can promise: rows that can be told by hand."""

from __future__ import annotations

from benchmarks.promises.kinds import POLICIES, kinds


def test_a_machine_with_two_bridged_pairs() -> None:
    linked, near = kinds(["a100-pcie-4-bridged"])
    # Of 15 sets of free GPUs, 7 hold one of the pairs or both; the pairs are the NUMA nodes.
    assert (linked.held, near.held) == (7, 7)
    assert linked.promised == linked.with_cpus == (7,) * len(POLICIES)


def test_cpus_and_gpus_that_need_other_numbers_of_numa_nodes_never_agree() -> None:
    """Four GPUs need two of the four quadrants, their CPUs one: ``restricted`` refuses that."""
    found = {kind.request.text: kind for kind in kinds(["dgx-a100"])}
    quads = found["4 GPUs link=nvlink"]
    policy = POLICIES.index("restricted")
    assert quads.promised[policy] > 0
    assert quads.with_cpus[policy] == 0
