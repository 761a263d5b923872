"""GetPreferredAllocation of NVIDIA's device plugin, step by step.

``available`` is in the order in which the plugin would see it. Sources: go-gpuallocator 0.6
(``besteffort_policy.go``) and k8s-device-plugin 0.20 (``internal/rm/allocate.go``). The plugin's
slice corruption at thirteen free GPUs and more is not emulated.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations

from topology.core.devices import GpuResource
from topology.core.graph import NodeTopology, plugin_version
from topology.core.links import LinkKind, Via
from topology.core.shape import Shape

PCIE_POINTS = {
    LinkKind.UNKNOWN: 0,
    LinkKind.SYS: 10,
    LinkKind.NODE: 20,
    LinkKind.PHB: 30,
    LinkKind.PXB: 40,
    LinkKind.PIX: 50,
    LinkKind.BOARD: 60,
}

# A device: the number of its GPU or MIG instance, and the number of the replica.
Device = tuple[int, int]

Split = tuple[tuple[int, ...], ...]


def refuses_several(topology: NodeTopology, served: GpuResource) -> bool:
    """Check whether the plugin refuses a container that requests more than one shared device.

    It does so in ``Allocate``. Before v0.20 it always refuses under MPS. Since v0.20, and under
    time-slicing, the refusal is an option.
    """
    if served.strategy == "none" or (served.strategy == "mig" and served.replicas == 1):
        return False
    version = plugin_version(topology.allocator.plugin_version)
    if served.strategy == "mps" and version is not None and version < (0, 20):
        return True
    return served.refuses_several is True


class PluginRefusal(Exception):  # noqa: N818 (it is an answer)
    """A refusal by the plugin of the devices that the kubelet has chosen."""


class PluginCrash(Exception):  # noqa: N818 (it is the plugin's, not ours)
    """A panic with which the plugin ended the call."""


def best_effort(
    shape: Shape, available: Sequence[Device], required: Sequence[Device], size: int
) -> list[Device]:
    """Return the set that BestEffort prefers. Raises :class:`PluginCrash` if it would panic."""
    gpus = [p for p, _ in available]
    points = _points(shape)
    for a, b in combinations(gpus, 2):
        link = shape.links[a][b]
        if size > 1 and link is not None and link.one_sided:
            raise PluginCrash("links of a pair are not bidirectional")
    must = {p for p, _ in required}
    scored: dict[tuple[int, ...], int] = {}

    def score(members: tuple[int, ...]) -> int:
        if members not in scored:
            real = [gpus[i] for i in members if i < len(gpus)]
            scored[members] = sum(points[a][b] for a, b in combinations(real, 2))
        return scored[members]

    def has_required(members: tuple[int, ...]) -> bool:
        return must <= {gpus[i] for i in members if i < len(gpus)}

    best: Split | None = None
    most = 0
    for split in _splits(len(gpus), size):
        if must and not any(has_required(s) and max(s) < len(gpus) for s in split):
            continue
        total = sum(map(score, split))
        if best is None or total > most:
            best, most = split, total
    if best is None:
        return []
    chosen = max((s for s in best if has_required(s)), key=score)  # the first of the best
    if max(chosen) >= len(gpus):
        raise PluginCrash("nil device in the preferred set")
    return [available[i] for i in chosen]


def greedy(
    replicas: int, *, fewest_first: bool
) -> Callable[[Shape, Sequence[Device], Sequence[Device], int], list[Device]]:
    """Return the function that chooses replicas, as in v0.20.

    With ``fewest_first`` it is the policy ``distributed``, otherwise ``packed``.
    """

    def choose(
        shape: Shape, available: Sequence[Device], required: Sequence[Device], size: int
    ) -> list[Device]:
        left = [d for d in available if d not in set(required)]
        open_ = Counter(p for p, _ in left)
        picked: Counter[int] = Counter()
        chosen = list(required)
        while len(chosen) < size:
            sign = 1 if fewest_first else -1
            # `left` is in random order and `min` takes the first, so ties are broken at random.
            device = min(left, key=lambda d: (sign * (replicas - open_[d[0]]), picked[d[0]]))
            left.remove(device)
            open_[device[0]] -= 1
            picked[device[0]] += 1
            chosen.append(device)
        return chosen

    return choose


@lru_cache(maxsize=256)
def _points(shape: Shape) -> list[list[int]]:
    n = range(shape.size)
    points = [[0] * shape.size for _ in n]
    for a in n:
        for b in n:
            link = shape.links[a][b]
            if link is not None:
                direct = link.nvlinks if link.via is Via.DIRECT else 0
                points[a][b] = PCIE_POINTS[link.pcie] + 100 * direct
    return points


@lru_cache(maxsize=256)
def _splits(free: int, size: int) -> list[Split]:
    """Return every split of the numbers 0 … free-1 and some blanks, in the plugin's order.

    Each split has groups of ``size``. The blanks have the numbers from ``free`` on, and one group
    has all of them.
    """
    if size == 1:
        return [((i,),) for i in range(free)]
    blanks = -free % size
    return list(_split(tuple(range(free + blanks)), size, free, blanks))


def _split(places: tuple[int, ...], size: int, free: int, blanks: int) -> Iterator[Split]:
    if len(places) == size:
        yield (places,)
        return
    first, rest = places[0], places[1:]
    for others in combinations(rest, size - 1):
        chosen = (first, *others)
        if sum(i >= free for i in chosen) in (0, blanks):
            for more in _split(tuple(i for i in rest if i not in others), size, free, blanks):
                yield (chosen, *more)
