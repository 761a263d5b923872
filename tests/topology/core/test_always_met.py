"""Where it makes no difference which devices a pod gets: then every set of them is a good one."""

from itertools import combinations

import pytest

from topology.core.devices import Bytes
from topology.core.links import LinkKind
from topology.core.placement import always_met, satisfies
from topology.core.requests import Constraints, Pattern
from topology.machines import machine

NVLINK = Constraints(link=LinkKind.NVLINK)
KINDS = ("dgx1-v100", "hgx-h100-8", "hgx-a100-4", "a100-pcie-4-bridged", "l40s-4", "gb200-tray")
ASKED = (
    Constraints(),
    NVLINK,
    Constraints(link=LinkKind.NVLINK, pattern=Pattern.RING),
    Constraints(min_nvlinks=4),
    Constraints(same_numa=True),
    Constraints(models=("*H100*",)),
    Constraints(min_gpu_memory=Bytes(70 * 2**30)),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constraints", ASKED, ids=lambda found: found.text)
def test_every_set_is_good_where_it_makes_no_difference(
    kind: str, constraints: Constraints
) -> None:
    shape = machine(kind).topology("n").shape
    if not always_met(shape, constraints):
        return
    for count in range(1, shape.size + 1):
        for each in combinations(range(shape.size), count):
            assert satisfies(shape, constraints, sum(1 << p for p in each))


@pytest.mark.parametrize(
    ("kind", "constraints", "expected"),
    [
        ("gb200-tray", NVLINK, True),
        ("hgx-h100-8", NVLINK, True),
        ("dgx1-v100", NVLINK, False),
        ("a100-pcie-4-bridged", NVLINK, False),
        ("l40s-4", NVLINK, False),
        ("hgx-h100-8", Constraints(same_numa=True), False),
        ("hgx-h100-8", Constraints(models=("*A100*",)), False),
        ("l40s-4", Constraints(), True),
    ],
)
def test_all_gpus_are_alike_to_the_request(
    kind: str, constraints: Constraints, expected: bool
) -> None:
    assert always_met(machine(kind).topology("n").shape, constraints) is expected
