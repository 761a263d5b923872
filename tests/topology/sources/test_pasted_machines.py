"""Pasted texts about two machines, and texts that say a thing twice."""

from tests.topology.sources.pasted import FOUR, P2P, TWO, each
from tests.topology.sources.reading import (
    NODE,
    ONE_TABLE,
    messages,
    refused,
)
from topology.sources import read


def test_two_machines_stay_refused() -> None:
    assert refused(FOUR + FOUR.replace("NV4", "NV2")).startswith(f"line 19: {ONE_TABLE} 1")
    assert refused(FOUR + P2P + FOUR.replace("PXB", "PIX")).startswith(f"line 28: {ONE_TABLE} 1")


def test_rows_of_two_machines_in_one_table() -> None:
    lines = FOUR.splitlines()
    mixed = "\n".join(f"node{i % 2}: {line}" for i, line in enumerate(lines))
    expected = (
        "the rows are of several machines, by the text before them: 'node0:', 'node1:'; give "
        "the rows of one"
    )
    assert refused(mixed) == f"line 2: {expected}"


def test_the_same_table_of_two_machines_is_refused() -> None:
    both = each("node1: ")(FOUR) + each("node2: ")(FOUR)
    assert "a second table begins" in refused(both)


def test_a_name_that_two_nics_have_is_refused() -> None:
    text = FOUR + "\n" + FOUR.replace("NIC0: mlx5_0", "NIC0: mlx5_7")
    assert (
        refused(text)
        == "line 36, NIC0: 'mlx5_7' here, but 'mlx5_0' before; give the text of one machine"
    )


def test_the_same_table_twice_is_reported() -> None:
    assert "line 19: the table of line 1 is repeated here; skipped" in messages(
        read(FOUR + FOUR, NODE)
    )


class TestXmlAndMatrix:
    XML = (
        '<system version="1"><cpu numaid="0"><pci busid="0000:07:00.0" class="0x030200"/>'
        "</cpu></system>\n"
    )

    def test_both_are_refused(self) -> None:
        for text, at, row in ((TWO + self.XML, 4, 2), (self.XML + TWO, 1, 3)):
            assert refused(text) == (
                f"line {at}: XML begins here, but line {row} has a matrix; give only one of them"
            )

    def test_what_stands_around_it_is_passed_over(self) -> None:
        plain = read(self.XML, NODE).topology
        for text in (
            self.XML + "root@node:~# exit\n",
            "<!-- from the cloud -->\n" + self.XML,
            "<?xml version='1.0'?>\n" + self.XML,
            "<img src='a.png'>\n" + self.XML + P2P,
        ):
            assert read(text, NODE).topology == plain
