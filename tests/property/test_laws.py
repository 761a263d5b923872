"""Laws that hold for every node, mask and request; each checked against a reference by force."""

from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nodes import score_of, subsets
from tests.wiring import isomorphic
from topology.core.admission import DeviceManager, admissions
from topology.core.availability import Availability, Holder, Unacknowledged
from topology.core.devices import Bytes, Gpu, GpuUuid, Nic, NodeName, positions
from topology.core.devicesets import choices, choices_count, common, gpu_masks, pack, width_for
from topology.core.devicesets import count as count_of
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import GBps, Link, LinkKind, Via
from topology.core.patterns import find_ring
from topology.core.placement import Verdict, assess, satisfies
from topology.core.possiblestates import possible_states
from topology.core.requests import Constraints, Counts, Pattern, Role, gpu_request
from topology.core.scoring import PRIOR, best_ring

PCIE = [LinkKind.SYS, LinkKind.NODE, LinkKind.PHB, LinkKind.PXB, LinkKind.PIX, LinkKind.UNKNOWN]


@st.composite
def nodes(draw: st.DrawFn, most: int = 6) -> NodeTopology:
    n = draw(st.integers(1, most))
    gpus = tuple(
        Gpu(
            i,
            GpuUuid(f"GPU-{i}"),
            draw(st.sampled_from(["NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB"])),
            Bytes(draw(st.sampled_from([16, 40])) * 2**30),
            draw(st.sampled_from([0, 1, None])),
        )
        for i in range(n)
    )
    links = tuple(
        Link(
            a,
            b,
            draw(st.sampled_from(PCIE)),
            draw(st.sampled_from([0, 0, 1, 2])),
            Via.DIRECT,
            GBps(25.0),
        )
        for a, b in combinations(range(n), 2)
    )
    near = tuple((i, draw(st.sampled_from(PCIE[:-1]))) for i in range(n))
    return NodeTopology(NodeName("n"), gpus, links, (Nic("mlx5_0", near),))


constraints = st.builds(
    Constraints,
    link=st.sampled_from([None, LinkKind.NVLINK, LinkKind.PIX, LinkKind.PHB, LinkKind.NODE]),
    min_nvlinks=st.sampled_from([None, 1, 2]),
    pattern=st.sampled_from(Pattern),
    min_bandwidth=st.sampled_from([None, GBps(10.0), GBps(50.0), GBps(100.0)]),
    min_gpu_memory=st.sampled_from([None, Bytes(20 * 2**30)]),
    models=st.sampled_from([(), ("a100*",), ("v100*", "a100*")]),
    same_numa=st.booleans(),
    nic=st.sampled_from([None, LinkKind.PIX, LinkKind.NODE]),
)


def reference(  # noqa: C901 (the contract, sentence by sentence)
    node: NodeTopology, wanted: Constraints, chosen: tuple[int, ...]
) -> bool:
    """The contract's sentences, spelled out over GPU objects without masks or shortcuts."""
    links = {frozenset((k.a, k.b)): k for k in node.links}
    near = dict(node.nics[0].distances)
    for i in chosen:
        gpu = node.gpus[i]
        if wanted.min_gpu_memory is not None and gpu.memory < wanted.min_gpu_memory:
            return False
        if wanted.models and not any(
            glob.rstrip("*") in gpu.product.lower() for glob in wanted.models
        ):
            return False
        if wanted.nic is not None and near[i] < wanted.nic:
            return False
    if len(chosen) == 1:
        return True
    if wanted.same_numa:
        at = {node.gpus[i].numa_node for i in chosen}
        if len(at) > 1 or None in at:
            return False

    def good(a: int, b: int) -> bool:
        link = links[frozenset((a, b))]
        return (wanted.link is None or link.kind >= wanted.link) and (
            wanted.min_nvlinks is None or link.nvlinks >= wanted.min_nvlinks
        )

    def wide(a: int, b: int) -> bool:
        least = wanted.min_bandwidth
        return least is None or links[frozenset((a, b))].bandwidth >= least

    def ring(ok: object) -> bool:
        assert callable(ok)
        first, *rest = chosen
        return any(
            all(ok(a, b) for a, b in zip((first, *order), (*order, first), strict=True))
            for order in permutations(rest)
        )

    if wanted.pattern is Pattern.PAIRWISE:
        meets = all(good(a, b) for a, b in combinations(chosen, 2))
    elif wanted.pattern is Pattern.RING:
        meets = ring(good)
    else:
        reached = {chosen[0]}
        for _ in chosen:
            reached |= {b for b in chosen for a in reached if a != b and good(a, b)}
        meets = reached == set(chosen)
    return meets and ring(wide)


@given(nodes(), constraints, st.data())
@settings(max_examples=400, deadline=None)
def test_a_set_satisfies_what_the_contract_says(
    node: NodeTopology, wanted: Constraints, data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(1, (1 << len(node.gpus)) - 1))
    expected = reference(node, wanted, tuple(positions(chosen)))
    assert satisfies(node.shape, wanted, chosen) is expected


@given(nodes(), constraints, st.data())
@settings(max_examples=400, deadline=None)
def test_a_verdict_is_what_all_outcomes_say(
    node: NodeTopology, wanted: Constraints, data: st.DataObject
) -> None:
    """Brute force over every subset that `any` may hand out, and every ending of running pods."""
    n = len(node.gpus)
    count = data.draw(st.integers(1, n))
    free = data.draw(st.integers(0, (1 << n) - 1))
    holders = data.draw(st.permutations(positions(~free & ((1 << n) - 1))))
    split = data.draw(st.integers(0, len(holders)))
    groups = [sum(1 << p for p in part) for part in (holders[:split], holders[split:]) if part]
    now = Availability(free, running=tuple(Holder(g) for g in sorted(groups)))
    verdict = assess(DeviceManager(node.shape), now, gpu_request(count, wanted)).verdict

    def all_do(mask: int) -> bool:
        return all(reference(node, wanted, s) for s in combinations(positions(mask), count))

    def some_do(mask: int) -> bool:
        return any(reference(node, wanted, s) for s in combinations(positions(mask), count))

    if wanted == Constraints():
        assert verdict is (Verdict.GUARANTEED if free.bit_count() >= count else Verdict.NOT_NOW)
        return
    everything = (1 << n) - 1
    if not some_do(everything):
        assert verdict is Verdict.NEVER
    elif free.bit_count() < count or not some_do(free):
        assert verdict is Verdict.NOT_NOW
    elif not all_do(free):
        assert verdict is Verdict.NOT_GUARANTEED
    else:
        endings = [free]
        for group in groups:
            endings += [mask | group for mask in endings]
        survives = all(all_do(mask) for mask in endings)
        assert verdict is (Verdict.GUARANTEED if survives else Verdict.EXPECTED)


@given(nodes(), constraints, st.data())
@settings(max_examples=200, deadline=None)
def test_renumbering_gpus_changes_only_names(
    node: NodeTopology, wanted: Constraints, data: st.DataObject
) -> None:
    n = len(node.gpus)
    to = data.draw(st.permutations(range(n)))
    links = tuple(
        Link(min(to[k.a], to[k.b]), max(to[k.a], to[k.b]), k.pcie, k.nvlinks, k.via, GBps(25.0))
        for k in node.links
    )
    gpus = tuple(Gpu(to[g.index], g.uuid, g.product, g.memory, g.numa_node) for g in node.gpus)
    nics = (Nic("mlx5_0", tuple((to[i], kind) for i, kind in node.nics[0].distances)),)
    other = NodeTopology(NodeName("other"), gpus, links, nics)
    assert isomorphic(node.shape, other.shape)
    free = data.draw(st.integers(0, (1 << n) - 1))
    moved = sum(1 << to[p] for p in positions(free))
    for count in range(1, n + 1):
        request = gpu_request(count, wanted)
        mine = assess(DeviceManager(node.shape), Availability(free), request)
        theirs = assess(DeviceManager(other.shape), Availability(moved), request)
        assert (mine.verdict, mine.passing_fraction, mine.rejection) == (
            theirs.verdict,
            theirs.passing_fraction,
            theirs.rejection,
        )
        renamed = {frozenset(to[p] for p in positions(s)) for s in mine.sets or ()}
        assert renamed == {frozenset(positions(s)) for s in theirs.sets or ()}


@given(nodes(), st.data())
@settings(max_examples=200, deadline=None)
def test_best_ring_is_the_widest_of_all_orders(node: NodeTopology, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(1, (1 << len(node.gpus)) - 1))
    members = positions(chosen)
    links = {frozenset((k.a, k.b)): k.bandwidth for k in node.links}
    first, *rest = members
    expected = max(
        min(
            (
                links[frozenset(hop)]
                for hop in zip((first, *order), (*order, first), strict=True)
                if hop[0] != hop[1]
            ),
            default=float("inf"),
        )
        for order in permutations(rest)
    )
    assert best_ring(node.shape, chosen) == expected


@given(nodes(8), st.integers(2, 8))
@settings(max_examples=100, deadline=None)
def test_the_ceiling_is_the_best_ring_of_any_so_many(node: NodeTopology, count: int) -> None:
    shape, request = node.shape, gpu_request(count)
    kubelet, now = DeviceManager(shape, AllocatorConfig("any")), Availability(shape.all_gpus)
    ceiling = score_of(kubelet, now, request, assess(kubelet, now, request), PRIOR).ceiling
    every = (best_ring(shape, mask) for mask in subsets(shape.all_gpus, count))
    assert ceiling == max(every, default=0.0)


@given(st.integers(1, 9).flatmap(lambda n: st.lists(st.booleans(), min_size=n * n, max_size=n * n)))
@settings(max_examples=150, deadline=None)
def test_a_ring_is_found_if_and_only_if_there_is_one(cells: list[bool]) -> None:
    n = int(len(cells) ** 0.5)
    joined = {frozenset((a, b)) for a, b in combinations(range(n), 2) if cells[a * n + b]}
    rows = tuple(
        sum(1 << q for q in range(n) if frozenset((p, q)) in joined and p != q) for p in range(n)
    )
    if n == 1:
        assert find_ring(rows, 1)
        return
    # A ring by growing paths, the plain way.
    paths: list[tuple[int, ...]] = [(0,)]
    for _ in range(n - 1):
        paths = [(*p, q) for p in paths for q in range(n) if q not in p and rows[p[-1]] >> q & 1]
        paths = list({(p[0], frozenset(p), p[-1]): p for p in paths}.values())
    assert find_ring(rows, (1 << n) - 1) is any(rows[p[-1]] & 1 for p in paths)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.data())
def test_choices_are_every_way_to_deal_shares(counts: list[int], data: st.DataObject) -> None:
    """Pools of `size` shares, against dealing the shares out one by one."""
    size = data.draw(st.integers(0, sum(counts)))
    shares = [p for p, n in enumerate(counts) for _ in range(n)]
    pool = pack(counts, 3)
    expected = {sum(1 << 3 * p for p in dealt) for dealt in combinations(shares, size)}
    found = list(choices(pool, size, 3))
    assert len(found) == len(set(found)) == choices_count(pool, size, 3, 10**9)
    assert set(found) == expected


@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 32, 1024]), st.data())
@settings(max_examples=100, deadline=None)
def test_masks_of_many_pools_are_those_of_each(n: int, replicas: int, data: st.DataObject) -> None:
    width = width_for(replicas)
    counts = st.lists(st.integers(0, replicas), min_size=n, max_size=n)
    dealt = data.draw(st.lists(counts, max_size=5))
    found = gpu_masks([pack(c, width) for c in dealt], n, width)
    assert found.tolist() == [sum(1 << p for p in range(n) if c[p]) for c in dealt]


several: st.SearchStrategy[Counts] = st.lists(
    st.tuples(st.sampled_from(Role), st.integers(1, 2)), min_size=1, max_size=4
).map(lambda found: (*found, (Role.APP, 1)))


@given(nodes(), st.sampled_from(["any", "best-effort", "distributed", "packed"]), st.data())
@settings(max_examples=150, deadline=None)
def test_no_gpu_is_ever_free_more_often_than_it_is_there(
    node: NodeTopology, policy: str, data: st.DataObject
) -> None:
    """Whatever comes and goes between the containers of several pods, no pool carries."""
    n = len(node.gpus)
    replicas = 1 if policy == "best-effort" else data.draw(st.integers(1, 2))
    width = width_for(replicas)
    kubelet = DeviceManager(node.shape, AllocatorConfig(policy), replicas)
    owner = data.draw(st.lists(st.integers(0, 3), min_size=n * replicas, max_size=n * replicas))
    held = [pack([owner[p::n].count(i) for p in range(n)], width) for i in range(4)]
    holders = tuple(Holder(pool) for pool in sorted(held[1:]) if pool)
    now = Availability(
        held[0],
        releasing=holders[:2],
        running=holders[2:],
        unacknowledged=(Unacknowledged(data.draw(several)),),
        width=width,
    )
    counts = data.draw(several)
    for state in possible_states(kubelet, now, endings=True, one_container=False).free_states or ():
        pools = [state.free, state.free + sum(state.later)]
        found = admissions(kubelet, state.free, counts, releasing=state.later)
        for way in found.ways or ():
            assert common(way.shown, way.taken, width) == way.shown
            pools += [way.shown, way.taken]
        for pool in pools:
            assert 0 <= pool < 1 << n * width
            assert all(count_of(pool, p, width) <= replicas for p in range(n))


facts_of_kubelets = st.builds(
    AllocatorConfig,
    policy=st.sampled_from(["best-effort", "any"]),
    plugin_version=st.just("v0.19.3"),
    topology_manager_policy=st.sampled_from(["none", "best-effort", "restricted"]),
    topology_manager_scope=st.sampled_from(["container", "pod"]),
    cpu_manager_policy=st.just("none"),
    memory_manager_policy=st.just("None"),
    prefers_closest=st.booleans(),
    numa_distances=st.just(((10, 20), (20, 10))),
)
FORGOTTEN: list[dict[str, Any]] = [
    {"sees_topology": False},
    {"policy": "any"},
    {"prefers_closest": None},
    {"numa_distances": None},
    {"topology_manager_policy": "unknown"},
    {"cpu_manager_policy": None, "memory_manager_policy": None},
]


@st.composite
def machines_that_crash(draw: st.DrawFn) -> NodeTopology:
    """Few pairs have links, as where NVIDIA's allocator may choose the set with blanks."""
    n = draw(st.integers(5, 7))
    numa = draw(st.sampled_from([(None, None), (0, 0), (0, 1)]))
    gpus = tuple(
        Gpu(i, GpuUuid(f"GPU-{i}"), "NVIDIA A30", Bytes(24 * 2**30), numa[i % 2]) for i in range(n)
    )
    pairs = list(combinations(range(n), 2))
    linked = draw(st.sets(st.sampled_from(pairs), max_size=2))
    links = tuple(
        Link(*pair, LinkKind.SYS, 2 * (pair in linked), Via.DIRECT, GBps(25.0)) for pair in pairs
    )
    return NodeTopology(NodeName("n"), gpus, links)


@given(machines_that_crash(), facts_of_kubelets, several, st.data())
@settings(max_examples=100, deadline=None)
def test_less_knowledge_of_a_node_gives_no_more_promises(
    node: NodeTopology, config: AllocatorConfig, counts: Counts, data: st.DataObject
) -> None:
    """A coarser model is a superset: it keeps every set, and every refusal of the finer one."""
    held = data.draw(st.sets(st.integers(0, 4), max_size=2))
    free = node.shape.all_gpus & ~sum(1 << p for p in held)
    for asked in (counts, ((Role.APP, 2),), ((Role.APP, 3),)):
        fine = admissions(DeviceManager(node.shape, config), free, asked)
        for forgotten in FORGOTTEN:
            coarse = admissions(
                DeviceManager(node.shape, replace(config, **forgotten)), free, asked
            )
            assert not fine.hazards or coarse.hazards, forgotten
            if coarse.sets:
                assert fine.sets is not None
                assert set(fine.sets) <= set(coarse.sets), forgotten
