"""An upper bound on the GPUs that any policy could have given out, had it known the future.

It holds for whoever places pods in the order in which they arrive, each if it fits anywhere, none
leaving. Let g_m be the GPU milli of kind m, and x_m how many of the kind are placed.

**Prices.** Let a place for a pod of kind m cost π_m ≥ 0. Whatever the prices,

    Σ_m g_m x_m  =  Σ_m (g_m - π_m) x_m  +  Σ_m π_m x_m

and the last sum is what the nodes take in: of each no more than its dearest filling. With the best
x_m for the first sum this is an upper bound. Fillings are exact in shares and whole GPUs, and in
CPU but for rounding in the pods' favour. Memory is left out of them, which can only raise the
bound.

**Order.** Nodes only fill up, so a kind once turned away is turned away ever after: of each kind
the first so many are placed. This gives two rows that narrow x, which get prices like the rest:

- To turn a pod away every node must be closed to it, by CPU, by memory or by GPUs too full. As long
  as all that has arrived cannot close them (again by prices, :func:`open_until`), it is placed.
- A pod that asks no more than another finds a place as long as the other does. Where T is when the
  harder b is first turned away, x_b counts the b until T and x_a at least the a until T; so
  x_a - s·x_b ≥ min over T of (a until T) - s·(b until T), for any s ≥ 0.

Good prices come from column generation, with HiGHS for the linear programs. Nothing rests on the
solver: what is returned is the sum above, worked out for prices that any source could have named.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import gcd

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import block_array, csc_array, eye_array

from benchmarks.papers.model import WHOLE, Bools, Floats, Ints, NodeKind, PodKind

CPU_STEPS = 1280  # into how many parts the largest node's CPU is cut; what pods ask is rounded down
# Part of the arrivals: a kind that comes no oftener gets no rows, which would change little.
RARE = 1 / 2000
CLOSE = 1e-5  # part of capacity: how near the best prices the search ends
ROUNDS = 400  # the search ends then, however near it is
# How much the next prices keep of the best ones: the linear program's own jump about.
SMOOTHING = 0.5


def upper_bound(
    machines: Sequence[NodeKind], arrivals: Sequence[PodKind], percent: float = 130
) -> float:
    """GPU allocation in percent of capacity that no policy exceeds when ``percent`` has arrived.

    The figure that it bounds is :meth:`~benchmarks.papers.simulation.Outcome.allocated`. Takes 3
    to 35 s for the openb trace.

    Only one of two shares has room on a GPU, and the first that comes is not to be turned away:

    >>> node = NodeKind(64_000, 64_000, 1, "T4")
    >>> small, large = PodKind(1_000, 1_000, 1, 600), PodKind(1_000, 1_000, 1, 700)
    >>> round(upper_bound([node], [large, small]), 6), round(upper_bound([node], [small, large]), 6)
    (70.0, 60.0)
    """
    capacity = WHOLE * sum(m.gpus for m in machines)
    arrived = np.cumsum([p.gpu_milli for p in arrivals])
    seen = _Arrivals(arrivals[: int((arrived <= capacity * percent / 100).sum())])
    if not seen.kinds or not capacity:
        return 0.0
    return min(100.0, 100 * _Search(machines, seen).run(CLOSE * capacity) / capacity)


def easier(a: PodKind, b: PodKind) -> bool:
    """Whether ``a`` can run wherever ``b`` can, on any nodes in any state."""
    if a.cpu > b.cpu or a.memory > b.memory:
        return False
    if not a.gpus:
        return True
    anywhere = not a.models or (bool(b.models) and b.models <= a.models)
    return anywhere and a.gpus <= b.gpus and a.milli <= b.milli


class _Arrivals:
    """Which kinds arrive, and how many of each (columns) before each step (rows)."""

    def __init__(self, pods: Sequence[PodKind]) -> None:
        self.kinds = list(dict.fromkeys(pods))
        place = {kind: i for i, kind in enumerate(self.kinds)}
        self.before = np.zeros((len(pods) + 1, len(self.kinds)), dtype=np.int64)
        self.before[range(1, len(pods) + 1), [place[p] for p in pods]] = 1
        self.before = np.cumsum(self.before, axis=0)

    def __len__(self) -> int:
        return len(self.before) - 1

    @property
    def total(self) -> Ints:
        found: Ints = self.before[-1]
        return found


def open_until(machines: Sequence[NodeKind], pods: Sequence[PodKind]) -> dict[PodKind, int]:
    """Of each kind, how many of ``pods`` can arrive before one of the kind may be turned away.

    A node is closed to a pod if too much of its CPU or memory is in use, or too many of its GPUs
    are too full. Let each of the three have a price. If all that has arrived, each pod sold as what
    pays best, brings in less than closing all nodes costs, each in the cheapest way, one is open.
    """
    if not pods:
        return {}
    seen = _Arrivals(pods)
    return dict(zip(seen.kinds, _open_until(Counter(machines), seen).tolist(), strict=True))


def _open_until(machines: Counter[NodeKind], seen: _Arrivals) -> Ints:
    found = np.array([_closing(machines, seen, kind) for kind in seen.kinds])
    harder = np.array([[easier(a, b) for b in seen.kinds] for a in seen.kinds])
    best: Ints = np.where(harder, found[None, :], 0).max(axis=1)
    return best


def _closing(machines: Counter[NodeKind], seen: _Arrivals, kind: PodKind) -> int:
    """How many pods can come before the prices tried no longer prove a node open to the kind."""
    places = [m for m in machines if _holds(m, kind)]
    if not places:
        return 0
    number = np.array([machines[m] for m in places])
    need: list[list[int]] = [
        [m.cpu - kind.cpu + 1 for m in places],
        [m.memory - kind.memory + 1 for m in places],
    ]
    have: list[list[float]] = [[p.cpu for p in seen.kinds], [p.memory for p in seen.kinds]]
    if kind.gpus:
        # A GPU that is too full has pods whose parts of this add up to 1.
        full = WHOLE - kind.milli + 1
        need.append([m.gpus - kind.gpus + 1 for m in places])
        have.append([p.gpus * min(p.milli, full) / full for p in seen.kinds])
    costs, worths = np.array(need, dtype=float), np.array(have, dtype=float)
    scale = costs.mean(axis=1, keepdims=True)
    costs, worths = costs / scale, worths / scale
    step, centre, spread = 0, np.zeros(len(costs)), 8.0
    while spread > 0.1:
        grid = np.array(list(product(np.linspace(-spread, spread, 17), repeat=len(costs) - 1)))
        prices = np.exp2(centre + np.column_stack([grid, np.zeros(len(grid))]))
        cost = (prices[:, :, None] * costs).min(axis=1) @ number * (1 - 1e-9)
        worth = (prices[:, :, None] * worths).max(axis=1)
        high = len(seen) + 1
        while high - step > 1:
            middle = (step + high) // 2
            if (worth @ seen.before[middle] < cost).any():
                step = middle
            else:
                high = middle
        centre = np.log2(prices[(cost / (worth @ seen.before[step] + 1e-9)).argmax()])
        spread /= 8
    return min(step + 1, len(seen))


def _holds(machine: NodeKind, kind: PodKind) -> bool:
    """Whether the pod can run on the empty node."""
    fits = machine.cpu >= kind.cpu and machine.memory >= kind.memory
    allowed = not kind.models or machine.model in kind.models
    return fits and (not kind.gpus or (machine.gpus >= kind.gpus and allowed))


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a filling sees of a pod: CPU and milli in steps, rounded down."""

    cpu: int
    gpus: int
    milli: int
    models: frozenset[str]


class _Fillings:
    """The dearest filling of a node of one model, for any CPU and any number of GPUs up to most.

    Dynamic programming: one GPU by milli and CPU; GPUs one after the other by CPU, whole ones for
    pods that take several; what asks for no GPU by CPU alone.
    """

    def __init__(
        self, shapes: Sequence[_Shape], prices: Floats, cpu: int, gpus: int, milli: int
    ) -> None:
        self._shapes = shapes
        self._milli = milli
        sold = [i for i, s in enumerate(shapes) if prices[i] > 0 and s.cpu <= cpu]
        self._one = np.zeros((milli + 1, cpu + 1))
        self._one_by = np.full((milli + 1, cpu + 1), -1)
        shares = [(i, shapes[i].cpu, shapes[i].milli) for i in sold if shapes[i].gpus == 1]
        for row, (i, c, m) in product(range(1, milli + 1), shares):
            if m <= row:
                offer = self._one[row - m, : cpu + 1 - c] + prices[i]
                _improve(self._one[row, c:], self._one_by[row, c:], offer, i)
        self._all = [np.zeros(cpu + 1)]
        self._all_by = [np.full(cpu + 1, 0)]
        steps = np.flatnonzero(np.diff(self._one[milli], prepend=-1) > 0)
        for count in range(1, gpus + 1):
            best, by = np.zeros(cpu + 1), np.zeros(cpu + 1, dtype=np.int64)
            for c in steps.tolist():  # CPU for the pods of one GPU more
                offer = self._all[-1][: cpu + 1 - c] + self._one[milli, c]
                _improve(best[c:], by[c:], offer, c)
            for i in sold:
                s = shapes[i]
                if 1 < s.gpus <= count:
                    offer = self._all[count - s.gpus][: cpu + 1 - s.cpu] + prices[i]
                    _improve(best[s.cpu :], by[s.cpu :], offer, -1 - i)
            self._all.append(best)
            self._all_by.append(by)
        none = [(i, shapes[i].cpu, float(prices[i])) for i in sold if not shapes[i].gpus]
        rest, self._rest_by = [0.0], [-1]
        for budget in range(1, cpu + 1):
            offers = [(rest[budget - c] + price, i) for i, c, price in none if c <= budget]
            value, i = max(offers, default=(0.0, -1))
            rest.append(value)
            self._rest_by.append(i)
        self._rest = np.array(rest)

    def best(self, cpu: int, gpus: int) -> tuple[float, Counter[int]]:
        """What the dearest filling costs, and how many of each shape are in it."""
        value = self._all[gpus][: cpu + 1] + self._rest[cpu::-1]
        split = int(value.argmax())
        return float(value[split]), Counter(self._filling(split, cpu - split, gpus))

    def _filling(self, cpu: int, rest: int, gpus: int) -> Iterator[int]:
        while (i := self._rest_by[rest]) >= 0:
            yield i
            rest -= self._shapes[i].cpu
        while gpus:
            taken = int(self._all_by[gpus][cpu])
            if taken < 0:
                i = -1 - taken
                yield i
                cpu, gpus = cpu - self._shapes[i].cpu, gpus - self._shapes[i].gpus
                continue
            left, milli = taken, self._milli
            while (i := int(self._one_by[milli, left])) >= 0:
                yield i
                left, milli = left - self._shapes[i].cpu, milli - self._shapes[i].milli
            cpu, gpus = cpu - taken, gpus - 1


def _improve(best: Floats, by: Ints, offer: Floats, who: int) -> None:
    better = offer > best
    best[better] = offer[better]
    by[better] = who


def _alike(models: set[str], shapes: Sequence[_Shape]) -> list[tuple[set[str], Bools]]:
    """Models on which the same shapes run, and which these are."""
    found: dict[bytes, tuple[set[str], Bools]] = {}
    for model in sorted(models):
        allowed = np.array([not s.models or model in s.models for s in shapes])
        found.setdefault(allowed.tobytes(), (set(), allowed))[0].add(model)
    return list(found.values())


def _order(seen: _Arrivals, step: Ints, least: Ints) -> tuple[csc_array, Floats]:
    """Rows R and limits r with R x ≤ r: of kinds that ask less no fewer are placed."""
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    limits: list[float] = []
    often = [i for i, n in enumerate(seen.total) if n > RARE * len(seen)]
    for a, b in permutations(often, 2):
        rest = int(seen.total[b] - least[b])
        if rest and easier(seen.kinds[a], seen.kinds[b]):
            slope = float(seen.total[a] - seen.before[step[b], a]) / rest
            until = seen.before[step[b] :, a] - slope * seen.before[step[b] :, b]
            rows += [len(limits)] * 2
            columns += [a, b]
            values += [-1.0, slope]
            limits.append(-float(until.min()))
    shape = (len(limits), len(seen.kinds))
    return csc_array((values, (rows, columns)), shape=shape), np.array(limits)


class _Search:
    """Prices for places and rows, better and better."""

    def __init__(self, machines: Sequence[NodeKind], seen: _Arrivals) -> None:
        self._machines = Counter(machines)
        kinds = seen.kinds
        self._unit = max(1, -(-max(m.cpu for m in machines) // CPU_STEPS))
        grain = gcd(WHOLE, *(p.milli for p in kinds))
        self._whole = WHOLE // grain
        shaped = [
            _Shape(
                p.cpu // self._unit,
                p.gpus,
                p.milli // grain if p.gpus else 0,
                p.models if p.gpus else frozenset(),
            )
            for p in kinds
        ]
        self._shapes = list(dict.fromkeys(shaped))
        # A pod that is rounded down to nothing takes no place and pays for none.
        self._something = np.array([s.cpu > 0 or s.gpus > 0 for s in self._shapes])
        self._shape = np.array([self._shapes.index(s) for s in shaped])
        self._ask = np.array([p.gpu_milli for p in kinds], dtype=float)
        # What a place can be worth at most: more than all GPUs that one pod can keep others from.
        self._highest = np.full(len(self._shapes), 3.0 * WHOLE * max(m.gpus for m in machines))
        step = _open_until(self._machines, seen)
        self._least = seen.before[step, range(len(kinds))]
        self._most = seen.total
        self._rows, self._limits = _order(seen, step, self._least)
        self._alike = _alike({m.model for m in machines}, self._shapes)
        self._columns: dict[tuple[NodeKind, frozenset[tuple[int, int]]], None] = {}
        self.bound = np.inf

    def run(self, close: float) -> float:
        """The lowest bound found, in milli."""
        none = np.zeros(len(self._limits))
        asked, cpu = np.zeros(len(self._shapes)), np.array([s.cpu for s in self._shapes])
        asked[self._shape] = self._ask
        for part in (0, 1, 3, 10, 30):
            self._try(asked + part * self._unit / 1000 * cpu, none)
        for _ in range(ROUNDS):
            reached, prices, rows = self._program()
            if self.bound - reached < close:
                break
            mixed = (
                SMOOTHING * old + (1 - SMOOTHING) * new
                for old, new in zip(self._best, (prices, rows), strict=True)
            )
            if not self._try(*mixed) and not self._try(prices, rows):
                break
        return float(self.bound)

    def _try(self, prices: Floats, rows: Floats) -> bool:
        """Work out the bound of these prices, keep their fillings; whether one of them is new."""
        prices = np.where(self._something, prices, 0)
        gain = self._ask - prices[self._shape] - self._rows.T @ rows
        bound = np.maximum(gain * self._least, gain * self._most).sum() + rows @ self._limits
        known = len(self._columns)
        for models, allowed in self._alike:
            machines = [m for m in self._machines if m.model in models]
            found = _Fillings(
                self._shapes,
                np.where(allowed, prices, 0),
                max(m.cpu for m in machines) // self._unit,
                max(m.gpus for m in machines),
                self._whole,
            )
            for machine in machines:
                value, filling = found.best(machine.cpu // self._unit, machine.gpus)
                bound += self._machines[machine] * value
                self._columns[machine, frozenset(filling.items())] = None
        if bound < self.bound:
            self.bound, self._best = float(bound), (prices, rows)
        return len(self._columns) > known

    def _program(self) -> tuple[float, Floats, Floats]:
        """What the fillings known so far can reach, and the prices of places and rows there.

        Over pods placed, pods that have no place (at a price that none should reach), and how many
        nodes have each filling.
        """
        kinds, shapes, columns = len(self._ask), len(self._shapes), list(self._columns)
        nodes = {machine: i for i, machine in enumerate(self._machines)}
        entries = [(i, j, -n) for j, (_, held) in enumerate(columns) for i, n in held]
        row, column, number = zip(*entries, strict=True) if entries else ((), (), ())
        held = csc_array((number, (row, column)), shape=(shapes, len(columns)))
        used = csc_array(
            (np.ones(len(columns)), ([nodes[m] for m, _ in columns], range(len(columns)))),
            shape=(len(nodes), len(columns)),
        )
        placed = csc_array(
            (self._something[self._shape].astype(float), (self._shape, range(kinds))),
            shape=(shapes, kinds),
        )
        found = linprog(
            np.concatenate([-self._ask, self._highest, np.zeros(len(columns))]),
            block_array(
                [[placed, -eye_array(shapes), held], [None, None, used], [self._rows, None, None]]
            ).tocsc(),
            np.concatenate([np.zeros(shapes), list(self._machines.values()), self._limits]),
            bounds=np.array(
                [
                    *zip(self._least, self._most, strict=True),
                    *[(0, np.inf)] * (shapes + len(columns)),
                ]
            ),
            method="highs",
        )
        prices = np.maximum(0, -found.ineqlin.marginals)
        rows = len(self._limits)
        return -float(found.fun), prices[:shapes], prices[len(prices) - rows :]
