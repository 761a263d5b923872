"""The pods of one node as a value: it holds what a dictionary would, and never changes."""

import random
from dataclasses import replace

from scheduler_extender.state.node.occupants import Roster
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.requests import gpu_request


def record(uid: str, phase: str) -> PodRecord:
    name = f"{uid[-1]}-of-its-name"
    pod = PodRecord(PodUid(uid), "default", name, NodeName("node"), gpu_request(1))
    return replace(pod, phase=phase)


def test_a_roster_is_a_mapping_of_what_was_put_in_and_not_taken_out() -> None:
    rng = random.Random(11)
    roster, known = Roster(), dict[PodUid, PodRecord]()
    before: list[tuple[Roster, dict[PodUid, PodRecord]]] = []
    for _ in range(600):
        uid = f"p{rng.randrange(40)}"
        if rng.random() < 0.3:
            gone = {PodUid(uid), PodUid(f"p{rng.randrange(40)}")}
            roster = roster.without(gone)
            known = {name: pod for name, pod in known.items() if name not in gone}
        else:
            pod = record(uid, rng.choice(["Pending", "Running", "Failed", "Succeeded"]))
            roster = roster.with_pod(pod)
            known = {**known, pod.uid: pod}
        before.append((roster, known))
        assert roster.alive == {name: pod for name, pod in known.items() if not pod.ended}
    for earlier, then in before:
        assert earlier == then
        assert len(earlier) == len(then) == len(list(earlier))
        for name in {pod.name for pod in then.values()}:
            named = {p.uid for p in then.values() if p.ended and p.name == name}
            assert set(earlier.named.get(("default", name), ())) == named
    assert ("other", "1-of-its-name") not in roster.named


def test_removing_an_absent_pod_changes_nothing() -> None:
    roster = Roster.of([record("a", "Running"), record("b", "Failed")])
    assert roster.without({PodUid("c")}) is roster
    assert PodUid("c") not in roster


def test_the_order_depends_on_the_pods_alone() -> None:
    pods = [record(f"p{i}", "Failed") for i in range(50)]
    assert list(Roster.of(pods)) == list(Roster.of(pods))
    assert sorted(Roster.of(pods)) == sorted(pod.uid for pod in pods)


def test_an_ended_pod_that_changes_keeps_its_position() -> None:
    roster = Roster.of([record(f"p{i}", "Failed") for i in range(500)])
    before = list(roster)
    for uid in before[::7]:
        roster = roster.with_pod(replace(roster[uid], admitted=True))
    assert list(roster) == before
    assert {uid for names in roster.named.values() for uid in names} == set(before)
