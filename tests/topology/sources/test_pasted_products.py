"""Products in pasted texts: read where they are named, and never guessed."""

import pytest

from tests.topology.sources.pasted import TWO, each
from tests.topology.sources.reading import (
    NODE,
    link,
    messages,
    refused,
)
from topology.core.links import Via
from topology.sources import read


class TestUnknownProduct:
    """A number alone does not say whether a switch stands between; then a finding does."""

    @pytest.mark.parametrize("cell", ["NV18", "NV12", "NV4"])
    def test_a_pair(self, cell: str) -> None:
        found = read(f"\tGPU0\tGPU1\nGPU0\t X \t{cell}\nGPU1\t{cell}\t X \n", NODE)
        assert link(found.topology, 0, 1).via is Via.DIRECT
        expected = f"{cell} may lead to the other GPU or to a switch, because "
        assert (
            f"line 1: {expected}the product is unknown; recorded as direct. Give --product"
            in messages(found)
        )

    def test_four_with_one_number(self) -> None:
        row = ["NV6"] * 4
        rows = [f"GPU{i}\t" + "\t".join([*row[:i], "X", *row[i + 1 :]]) for i in range(4)]
        text = "\n".join(["\tGPU0\tGPU1\tGPU2\tGPU3", *rows])
        assert "NV6 may lead to the other GPU or to a switch" in str(messages(read(text, NODE)))

    def test_different_numbers_are_no_switch(self) -> None:
        text = "GPU0 GPU1 GPU2\nGPU0 X NV1 NV2\nGPU1 NV1 X NV2\nGPU2 NV2 NV2 X\n"
        assert "NV1 may lead" not in str(messages(read(text, NODE)))

    def test_a_product_that_cannot_have_them_is_another_matter(self) -> None:
        text = "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"
        found = read(text, NODE, product="NVIDIA A30")
        assert "check the product" in str(messages(found))
        assert "the product is unknown" not in str(messages(found))


CARDS = """\
+-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA L40S                    On  |   00000000:07:00.0 Off |                    0 |
| N/A   30C    P8             35W /  350W |       1MiB /  46068MiB |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A30                     On  |   00000000:0F:00.0 Off |                    0 |
| N/A   30C    P0             30W /  165W |       1MiB /  24576MiB |      0%      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
"""
L40S = ["NVIDIA L40S"] * 2


class TestProductsInReports:
    @pytest.mark.parametrize(
        ("text", "products"),
        [
            ("GPU models and configuration: \nGPU 0: NVIDIA L40S\nGPU 1: NVIDIA A30\n",
             ["NVIDIA L40S", "NVIDIA A30"]),
            ("GPU 0: Tesla T4\nGPU 1: Tesla T4\n", ["Tesla T4"] * 2),
            ("GPU 0: A100-SXM4-40GB\nGPU 1: A100-SXM4-40GB\n", ["A100-SXM4-40GB"] * 2),
            ("GPU 0,1: NVIDIA L40S\nGPU 0,1 Compute Capability: 8.9\n", L40S),
            ("NVIDIA L40S, 46068, 0\nNVIDIA L40S, 46068, 3\n", L40S),
            ("0, NVIDIA L40S, 46068 MiB\n1, NVIDIA L40S, 46068 MiB\n", L40S),
            (CARDS, ["NVIDIA L40S", "NVIDIA A30"]),
            ("GPU 0: 45 C\nGPU 1: idle\n", ["unknown"] * 2),
        ],
        ids=["vLLM", "older", "oldest", "sglang", "CSV", "numbered CSV", "nvidia-smi", "prose"],
    )  # fmt: skip
    def test_are_read(self, text: str, products: list[str]) -> None:
        for paste in (text + TWO, TWO + text, each("worker-0 | ")(text + TWO)):
            assert [gpu.product for gpu in read(paste, NODE).topology.gpus] == products

    @pytest.mark.parametrize(
        "text",
        [
            "GPU 0: NVIDIA L40S\nGPU 1: NVIDIA A30\nGPU 0 Compute Capability: 8.9\n",
            "GPU 0: NVIDIA L40S\nGPU 0 Compute Capability: 8.9\n",
            "NVIDIA L40S, 46068\nNVIDIA A30, 24576\n",
        ],
        ids=["CUDA's order", "CUDA sees fewer", "CSV of two kinds"],
    )
    def test_are_not_guessed(self, text: str) -> None:
        found = read(text + TWO, NODE)
        assert [gpu.product for gpu in found.topology.gpus] == ["unknown"] * 2
        assert any(
            "but not the product of each GPU; give --product" in line for line in messages(found)
        )

    def test_the_table_of_nvidia_smi_says_more(self) -> None:
        first, second = read(CARDS + TWO, NODE).topology.gpus
        assert [g.memory // 2**20 for g in (first, second)] == [46068, 24576]
        assert [g.pci_bus_id for g in (first, second)] == ["0000:07:00.0", "0000:0f:00.0"]
        assert [g.mig_mode for g in (first, second)] == ["disabled", "enabled"]

    def test_a_name_that_is_cut_is_none(self) -> None:
        cut = CARDS.replace("NVIDIA L40S", "NVIDIA L4...")
        assert read(cut + TWO, NODE).topology.gpus[0].product == "unknown"

    def test_lists_that_differ_are_refused(self) -> None:
        text = "GPU 0: NVIDIA A30\n" + CARDS + TWO
        assert refused(text).startswith("line 3, GPU 0: product 'NVIDIA L40S', but 'NVIDIA A30' on")


def test_a_compute_instance_is_served_as_its_gpu_instance() -> None:
    listed = "GPU 0: NVIDIA H200 (UUID: GPU-0)\n  MIG 1c.3g.71gb  Device  0: (UUID: MIG-0)\n"
    found = read(listed + "\tGPU0\nGPU0\t X \n", NODE).topology
    assert [part.profile for part in found.gpus[0].mig_instances] == ["1c.3g.71gb"]
    assert [served.name for served in found.resources] == ["nvidia.com/mig-3g.71gb"]
