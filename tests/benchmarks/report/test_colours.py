"""Colours."""

from __future__ import annotations

from benchmarks.report import colours


def test_a_policy_has_the_same_colour_on_every_page() -> None:
    alone, among = colours.Palette(["Buddy"]), colours.Palette(["x.py:A", "FGD", "Buddy"])
    assert alone.paint("Buddy") == among.paint("Buddy")
    assert among.paint("x.py:A") not in {among.paint(name) for name in ("FGD", "Buddy")}
    for declared in (list(among.light()), list(among.dark())):
        assert len({line.partition(":")[0] for line in declared}) == len(declared)
        hues = [line.partition(":")[2] for line in declared]
        usual = ("gpu-topology", "LeastAllocated", "MostAllocated", "Preserve", "Buddy")
        used = {hues[int(among.paint(name)[4:], 16)] for name in usual}
        assert len(used) == len(usual)
