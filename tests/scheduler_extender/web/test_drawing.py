"""What a drawing says without its colours."""

import math
import re
from itertools import combinations

import pytest

from scheduler_extender.explain.gpustates import Use, node_state
from scheduler_extender.web.drawing import MIXED, mark, tile, whole
from scheduler_extender.web.html import static_file
from tests.scheduler_extender.web.cluster import Building
from topology.core.devices import Bytes, Gpu, GpuUuid, Nic, NodeName
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.report import Report
from topology.machines import MACHINES

CSS = static_file("map.css").decode()


def rule(selector: str) -> dict[str, str]:
    """What the style sheet says of a selector, in all its rules."""
    found: dict[str, str] = {}
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", CSS):
        if selector in (each.strip() for each in selectors.split(",")):
            for line in filter(str.strip, body.split(";")):
                key, _, value = line.partition(":")
                found[key.strip()] = value.strip()
    return found


def signs(state: str) -> tuple[object, ...]:
    """All that tells a GPU of this state from others in black and white."""
    drawn = "".join(mark((0, 0), state, 10))
    style = rule(".dot") | rule(f".dot.{state}")
    return (
        tuple(re.findall(r"<(\w+)", drawn)),
        style["fill"] == "var(--free)",
        style.get("stroke-dasharray", ""),
        style.get("stroke-width", ""),
    )


def key_signs(state: str) -> tuple[object, ...]:
    """The same of its key in the legend."""
    style = rule(".key") | rule(f".key.{state}")
    background = style.get("background", "")
    edge = style.get("border", "")
    return (
        style.get("border-radius"),
        background == "var(--free)",
        re.sub(r"var\(--[\w-]+\)", "", background),
        re.sub(r"var\(--[\w-]+\)", "", edge),
        style.get("border-style", ""),
    )


STATES = [*(use.value for use in Use), MIXED]


@pytest.mark.parametrize("signs_of", [signs, key_signs], ids=["drawing", "key"])
def test_no_state_is_recognised_by_its_colour_alone(signs_of: object) -> None:
    assert callable(signs_of)
    found = {state: signs_of(state) for state in STATES}
    twins = [(a, b) for a in STATES for b in STATES if a < b and found[a] == found[b]]
    assert not twins


def test_a_stranded_gpu_has_one_colour_in_bar_drawing_and_key() -> None:
    fills = {
        rule(".fill.stranded")["fill"],
        rule(".dot.stranded")["fill"],
        rule(".key.stranded")["background"],
    }
    assert fills == {"var(--stranded)"}


@pytest.mark.parametrize("kind", sorted(MACHINES))
def test_nothing_is_drawn_outside_of_a_tile(kind: str) -> None:
    made = Building()
    node = made.node(kind, "n")
    pod = made.pod("all", len(node.gpus), node)
    made.report(node, [(pod, tuple(range(len(node.gpus))))])
    (state,) = (node_state(info) for info in made.cluster.snapshot().nodes)
    text = tile(state, frozenset(range(len(node.gpus))))
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert box is not None
    width, height = map(float, box.groups())
    for x, y, r in re.findall(r'<circle cx="([\d.-]+)" cy="([\d.-]+)" r="([\d.]+)"', text):
        assert float(x) - float(r) >= 0
        assert float(x) + float(r) <= width
        assert float(y) - float(r) >= 0
        assert float(y) + float(r) <= height
    assert text.count('class="found"') == len(node.gpus)


def test_nics_beside_the_same_gpus_are_drawn_apart() -> None:
    """On the left of the drawing, one angle may be about half a turn, and the other minus that."""
    gpus = tuple(Gpu(n, GpuUuid(f"GPU-{n}"), "H100", Bytes(1 << 30)) for n in range(8))
    near = ((4, 5, 6, 7), (5, 6), (4, 7), (5,), (6,)) * 3
    nics = tuple(
        Nic(f"mlx5_{n}", tuple((at, LinkKind.PIX) for at in some)) for n, some in enumerate(near)
    )
    made = Building()
    made.cluster.put_record(NodeTopology(NodeName("n"), gpus, nics=nics), Report("boot", 1))
    (state,) = (node_state(info) for info in made.cluster.snapshot().nodes)
    found = re.findall(r'<rect x="([-\d.]+)" y="([-\d.]+)" width="44"', whole(state))
    spots = [(float(x), float(y)) for x, y in found]
    assert len(spots) == len(nics)
    assert all(math.dist(a, b) > 20 for a, b in combinations(spots, 2))
