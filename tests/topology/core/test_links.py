"""Links: their order, their bandwidth, and the table of NVLink ports by product."""

import tracemalloc
from fnmatch import translate

import pytest

from tests.counting import calls
from topology.core.links import (
    NVLINK_PORTS,
    PCIE_BANDWIDTH,
    GBps,
    Link,
    LinkKind,
    NvlinkPort,
    Via,
    canonical_product,
    is_product,
    matches_glob,
    nvlink_port,
)

NEAREST_FIRST = ["NVLINK", "BOARD", "PIX", "PXB", "PHB", "NODE", "SYS", "?"]


def test_kinds_are_ordered_from_near_to_far() -> None:
    assert [kind.label for kind in sorted(LinkKind, reverse=True)] == NEAREST_FIRST


@pytest.mark.parametrize(
    ("link", "kind"),
    [
        pytest.param(Link(0, 1), LinkKind.UNKNOWN, id="nothing known"),
        pytest.param(Link(0, 1, LinkKind.PIX), LinkKind.PIX, id="PCIe alone"),
        pytest.param(
            Link(0, 1, LinkKind.SYS, 1), LinkKind.NVLINK, id="NVLink beats its PCIe class"
        ),
        pytest.param(Link(0, 1, nvlinks=18, via=Via.SWITCH), LinkKind.NVLINK, id="switch"),
    ],
)
def test_the_kind_of_a_pair(link: Link, kind: LinkKind) -> None:
    assert link.kind is kind


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        pytest.param(Link(0, 1, LinkKind.SYS, 2, Via.DIRECT, GBps(25)), 100, id="both ways"),
        pytest.param(Link(0, 1, LinkKind.SYS, 18, Via.SWITCH, GBps(25)), 900, id="undivided"),
        pytest.param(Link(0, 1, LinkKind.PIX, 4), 0, id="NVLinks of unknown speed carry nothing"),
        pytest.param(Link(0, 1, LinkKind.PIX), PCIE_BANDWIDTH[LinkKind.PIX], id="PCIe"),
        pytest.param(Link(0, 1), 0, id="unknown"),
    ],
)
def test_the_bandwidth_of_a_hop(link: Link, expected: float) -> None:
    assert link.bandwidth == expected


def test_a_nearer_pcie_class_carries_no_less() -> None:
    carried = [PCIE_BANDWIDTH[LinkKind[word]] for word in NEAREST_FIRST[1:-1]]
    assert carried == sorted(carried, reverse=True)
    assert PCIE_BANDWIDTH[LinkKind.UNKNOWN] == GBps(0.0)
    assert min(carried) > 0


@pytest.mark.parametrize(
    ("product", "name"),
    [
        pytest.param("Tesla V100-SXM2-16GB", "v100-sxm2-16gb", id="Tesla"),
        pytest.param("NVIDIA A100 80GB PCIe", "a100-80gb-pcie", id="NVIDIA, blanks"),
        pytest.param(" nvidia_tesla_t4 ", "t4", id="underscores"),
        pytest.param("H100", "h100", id="bare"),
    ],
)
def test_product_names_are_compared_in_one_form(product: str, name: str) -> None:
    assert canonical_product(product) == name


@pytest.mark.parametrize(
    ("product", "port"),
    [
        pytest.param("Tesla P100-SXM2-16GB", (4, 20), id="P100"),
        pytest.param("Tesla P100-PCIE-16GB", (0, 0), id="P100 on PCIe has none"),
        pytest.param("Tesla V100-PCIE-32GB", (0, 0), id="V100 on PCIe has none"),
        pytest.param("Tesla V100S-PCIE-32GB", (0, 0), id="V100S is on PCIe"),
        pytest.param("NVIDIA A30", (4, 25), id="A30"),
        pytest.param("NVIDIA A40", (4, 14.0625), id="A40 bridged"),
        pytest.param("NVIDIA RTX A6000", (4, 14.0625), id="A6000 bridged"),
        pytest.param("NVIDIA H100 PCIe", (12, 25), id="H100 PCIe with bridges"),
        pytest.param("NVIDIA H100 80GB HBM3", (18, 25), id="H100 SXM"),
        pytest.param("NVIDIA H800", (8, 25), id="H800 is cut down"),
        pytest.param("NVIDIA B200", (18, 50), id="B200"),
    ],
)
def test_the_port_of_a_product(product: str, port: tuple[int, float]) -> None:
    assert nvlink_port(product) == NvlinkPort(port[0], GBps(port[1]))


@pytest.mark.parametrize("product", ["NVIDIA L40S", "NVIDIA A3000", "NVIDIA H1000", ""])
def test_a_product_that_is_not_in_the_table_is_unknown(product: str) -> None:
    assert nvlink_port(product) is None


def test_no_row_of_the_table_hides_a_later_one() -> None:
    """The first match wins, so a product that a row names must not be caught by one before it."""
    examples = ["p100-sxm2", "p100", "v100-pcie", "v100", "a100", "a800", "a30", "rtx-a6000",
                "h800", "h100-pcie", "h100", "b200"]  # fmt: skip
    found = [nvlink_port(name) for name in examples]
    assert found == [port for _, port in NVLINK_PORTS]


@pytest.mark.parametrize(
    ("model", "meant", "not_meant"),
    [
        ("h100", ["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "H100"], ["NVIDIA GH100X", "H1000"]),
        ("a100-sxm4", ["NVIDIA A100-SXM4-40GB"], ["NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM41"]),
        ("A100 80GB", ["NVIDIA A100 80GB PCIe"], ["NVIDIA A100-SXM4-80GB"]),
        ("rtx 3090", ["NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3090 Ti"], ["RTX A3090"]),
        ("*RTX-3090", ["NVIDIA GeForce RTX 3090"], ["NVIDIA GeForce RTX 3090 Ti"]),
        ("Tesla V100", ["Tesla V100-SXM2-16GB", "NVIDIA V100"], ["Tesla V100S-PCIE-32GB"]),
        ("80gb", ["NVIDIA A100-SXM4-80GB"], ["NVIDIA A100-SXM4-40GB"]),
        ("H?00", ["NVIDIA H100", "H200"], ["NVIDIA H100 PCIe"]),
        ("A100", [], ["NVIDIA A100-SXM4-40GB-MIG-1g.5gb"]),
        ("mig-1g.5gb", ["NVIDIA A100-SXM4-40GB-MIG-1g.5gb"], ["A100-SXM4-40GB-MIG-1g.5gb+me"]),
    ],
)
def test_a_model_is_a_run_of_whole_words_or_a_glob(
    model: str, meant: list[str], not_meant: list[str]
) -> None:
    wanted = canonical_product(model)
    assert all(is_product(canonical_product(name), wanted) for name in meant)
    assert not any(is_product(canonical_product(name), wanted) for name in not_meant)


def test_globs_that_users_choose_stay_in_memory_only_for_a_while() -> None:
    def held(first: int) -> int:
        for number in range(first, first + 600):
            is_product("h100-80gb-hbm3", f"{number}*" + "a*" * 30)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = held(0)
        assert held(600) - before < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_glob_is_translated_once_for_all_names() -> None:
    def match() -> None:
        for number in range(100):
            matches_glob("pod-*-once", f"pod-{number}")

    assert calls(match, translate.__code__) == 1
