"""Which pods count on a node by a nomination, or by a claim, follows from the current objects,
and not from the order of the events."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Taint
from tests.nodes import bridged, pod, record_of
from topology.core.devices import NodeName, PodUid
from topology.core.dra import Claimed, Published, served
from topology.core.report import Report

NODES = NodeName("one"), NodeName("two")
UIDS = "a", "b", "single"
NUMBERS = count(1)
Event = Callable[[Cache], object]

OBJECTS = {
    "open": NodeObject(exists=True),
    "cordoned": NodeObject(exists=True, cordoned=True),
    "tainted": NodeObject(exists=True, taints=(Taint("sick", "", "NoSchedule"),)),
    "old": NodeObject(exists=True, labels={"kind": "old"}),
}


def put_record(node: NodeName, *, by_dra: bool, claiming: str = "") -> Event:
    def happens(cluster: Cache) -> None:
        topology, report = bridged(name=node), Report("boot", next(NUMBERS))
        if by_dra:
            published = [Published("pool", f"gpu-{i}", f"GPU-{i}") for i in range(4)]
            claimed = [
                Claimed("pool", f"gpu-{i}", PodUid(claiming), "default", claiming, claim="its")
                for i in range(1 + (claiming != "single"))
                if claiming
            ]
            bare = replace(topology, resources=())
            topology, report = served(bare, report, "nvidia.com/gpu", published, claimed)
        cluster.put_record(topology, report)

    return happens


def put_object(node: NodeName, what: str) -> Event:
    return lambda cluster: cluster.put_node(node, OBJECTS[what])


def seen(uid: str, nominated: NodeName | None) -> PodRecord:
    manifest: dict[str, Any] = pod(1 + (uid != "single"), {}, name=uid, uid=uid)
    if uid != "single":
        manifest["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "g"}
        manifest["spec"]["nodeSelector"] = {"kind": "old"} if uid == "b" else {}
    if nominated is not None:
        manifest["status"]["nominatedNodeName"] = nominated
    return record_of(manifest)


def put_pod(uid: str, nominated: NodeName | None) -> Event:
    return lambda cluster: cluster.put_pod(seen(uid, nominated))


def bind(uid: str, node: NodeName | None) -> Event:
    """As our bind verb does: on one node at a time; None where it was surely not written."""

    def happens(cluster: Cache) -> None:
        if (ours := cluster.assumed(PodUid(uid))) is not None:
            cluster.forget(ours)
        if node is not None:
            cluster.assume(node, seen(uid, None))

    return happens


EVENTS: dict[tuple[str, str], list[Event]] = {
    **{("object", n): [put_object(n, w) for w in OBJECTS] for n in NODES},
    **{
        ("record", node): [
            put_record(node, by_dra=False),
            *(put_record(node, by_dra=True, claiming=uid) for uid in ("", *claiming)),
        ]
        # A pod's claims are on one node.
        for node, claiming in zip(NODES, (("a", "single"), ("b",)), strict=True)
    },
    **{("pod", uid): [put_pod(uid, n) for n in (*NODES, None)] for uid in UIDS},
    **{("bind", uid): [bind(uid, node) for node in (*NODES, None)] for uid in UIDS},
}
for node in NODES:
    EVENTS["object", node].append(lambda cluster, n=node: cluster.drop_node(n))  # type: ignore[misc]
    EVENTS["record", node].append(lambda cluster, n=node: cluster.drop_record(n))  # type: ignore[misc]
for uid in UIDS:
    EVENTS["pod", uid].append(lambda cluster, u=uid: cluster.keep_pods({*UIDS} - {u}))  # type: ignore[misc]


def state_after(events: list[tuple[tuple[str, str], int]]) -> dict[str, Any]:
    """What counts once all of this has happened."""
    cluster = Cache(lambda: 0.0)
    for stream, event in events:
        EVENTS[stream][event](cluster)
    snapshot = cluster.snapshot()
    group = next(iter(snapshot.groups.members.values()), None)
    return {
        "coming": {n: {*snapshot.node_info(n).pods.assumed} for n in NODES},
        "kept for": {n: [p.uid for p in snapshot.node_info(n).reservations] for n in NODES},
        "members": group and dict(group.group_status().living),
        "expected": group and group.expected(None, seen("single", None).request, 9),  # type: ignore[arg-type]
    }


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.sampled_from(sorted(EVENTS)).flatmap(
            lambda stream: st.tuples(st.just(stream), st.integers(0, len(EVENTS[stream]) - 1))
        ),
        max_size=14,
    )
)
def test_nominated_pods_count_alike_in_any_order_of_events(
    events: list[tuple[tuple[str, str], int]],
) -> None:
    last = dict(events)
    at_once = [(stream, last[stream]) for stream in sorted(last)]
    assert state_after(events) == state_after(at_once)
