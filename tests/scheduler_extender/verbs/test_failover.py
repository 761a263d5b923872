"""Groups over a failover: another replica sees the pods, and goes on as the former leader would."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import PLACEMENT
from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.framework.capacitycounter import CapacityCounter
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import BindError, Binding, bind
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import record_of
from tests.scheduler_extender.verbs.racks import RACK, Scheduler, member, rack
from topology.core.devices import NodeName, PodUid

GANG = {"scheduling.x-k8s.io/pod-group": "g"}
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()


class Leader(Scheduler):
    """A replica that leads, with a clock of its own; ``written`` is what its binds have written."""

    def __init__(self, racks: dict[str, int], today: float = NOON) -> None:
        super().__init__(racks)
        self.today = today
        self.written: dict[str, tuple[dict[str, Any], Binding]] = {}

    def bind(self, manifest: dict[str, Any], node: str) -> str:
        """Bind, and keep what is written."""
        meta = manifest["metadata"]
        self.binder.saw(msgspec.convert(manifest, Pod))
        args = BindingArgs(meta["name"], meta["namespace"], meta["uid"], node)
        try:
            bind(self.cluster, _Writer(self, manifest), args, self._now)
        except BindError as error:
            return str(error)
        return ""

    def _now(self) -> str:
        return datetime.fromtimestamp(self.today, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def watched(self, rng: random.Random | None = None) -> list[PodRecord]:
        """The bound pods as another replica lists them, in any order."""
        found = [as_listed(manifest, binding) for manifest, binding in self.written.values()]
        if rng is not None:
            rng.shuffle(found)
        return found

    def kept(self) -> dict[str, list[str]]:
        """The groups for which places are kept on each node."""
        found = CapacityCounter(self.cluster.snapshot(), NO_DEADLINE).reservations()
        return {
            str(name): [f"{group.name} {arrivals.count}" for group, arrivals in places]
            for name, places in sorted(found.reserved.items())
        }


class _Writer(FileBinder):
    def __init__(self, leader: Leader, manifest: dict[str, Any]) -> None:
        super().__init__(leader.cluster)
        self._leader = leader
        self._manifest = manifest
        self.saw(msgspec.convert(manifest, Pod))

    def write(self, binding: Binding) -> None:
        super().write(binding)
        self._leader.written[binding.uid] = (self._manifest, binding)


def as_listed(manifest: dict[str, Any], binding: Binding) -> PodRecord:
    """A bound pod as the API server has it."""
    copy = json.loads(json.dumps(manifest))
    copy["metadata"].setdefault("annotations", {})[PLACEMENT] = binding.placement
    copy["spec"]["nodeName"] = binding.node
    return record_of(copy)


def bound_at(manifest: dict[str, Any], node: str, time: str) -> PodRecord:
    """A pod that was bound at a time, as the API server has it."""
    uid = manifest["metadata"]["uid"]
    placement = json.dumps({"verdict": "guaranteed", "node": node, "uid": uid, "time": time})
    binding = Binding("default", manifest["metadata"]["name"], uid, NodeName(node), placement)
    return as_listed(manifest, binding)


def after_failover(leader: Leader, racks: dict[str, int], rng: random.Random) -> Leader:
    """A new leader that has listed the pods."""
    found = Leader(racks, leader.today + rng.choice((-5.0, 0.0, 0.001, 5.0)))
    found.written = dict(leader.written)
    for each in leader.watched(rng):
        found.cluster.put_pod(each)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_groups_that_start_within_a_second_keep_their_order_over_a_failover(seed: int) -> None:
    """All start at the same moment of the clock, or of clocks that differ, and ask for different
    things: in another order other places would be kept."""
    rng = random.Random(seed)
    racks = {"a": 6}
    leader = Leader(racks)
    for i in rng.sample(range(20), 8):
        leader.today += rng.choice((0.0, 0.0, 1e-6, 0.01, -0.5))
        size, gpus = rng.randint(2, 5), rng.choice((1, 2, 3, 4))
        first = member(f"g{i}-0", f"g{i}", size, gpus)
        nodes = leader.passing(first)
        if nodes:
            assert leader.bind(first, rng.choice(nodes)) == ""
        if rng.random() < 0.2:
            leader = after_failover(leader, racks, rng)
    assert after_failover(leader, racks, rng).kept() == leader.kept()


def test_another_order_gives_other_reservations() -> None:
    """Else the test above would be about nothing."""
    kept = []
    for times in (("12:00:00.000001Z", "12:00:00.000002Z"), ("12:00:00.3Z", "12:00:00.2Z")):
        leader = Leader({"a": 3})
        for (name, size, gpus, node), time in zip(
            (("x", 2, 3, "a-00"), ("y", 3, 2, "a-01")), times, strict=True
        ):
            leader.cluster.put_pod(
                bound_at(member(f"{name}0", name, size, gpus), node, f"2026-11-22T{time}")
            )
        kept.append(leader.kept())
    assert kept[0] != kept[1]


def test_a_made_up_time_moves_no_group_ahead() -> None:
    """The times after it could not be written down: years have four digits."""
    leader = Leader({"a": 4})
    assert leader.bind(member("x0", "x", 2, 2), "a-00") == ""
    (listed,) = leader.watched()
    far = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    anew = Leader({"a": 4})
    anew.cluster.put_pod(replace(listed, placed=far))
    assert anew.bind(member("y0", "y", 2, 2), "a-01") == ""
    (_, binding) = anew.written[PodUid("uid-y0")]
    assert json.loads(binding.placement)["time"] == "2026-11-22T12:00:00Z"


def test_groups_that_have_written_the_same_time_are_ordered_by_name() -> None:
    pods = [
        bound_at(member("x0", "x", 2, 3), "a-00", "2026-11-22T12:00:00Z"),
        bound_at(member("y0", "y", 3, 2), "a-01", "2026-11-22T12:00:00Z"),
    ]
    found = []
    for order in (pods, pods[::-1]):
        leader = Leader({"a": 3})
        for each in order:
            leader.cluster.put_pod(each)
        found.append(leader.kept())
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(60))
def test_a_gang_that_is_asked_about_before_and_after_a_failover_is_bound_whole(seed: int) -> None:
    """Its scheduler asks the old leader about some members and the new one about the others, and
    the new one does not know to which rack the first were sent. So a bind may be refused. The first
    bind that is taken decides: it is taken only where all have a place, and who was refused
    follows. Nobody is refused twice once the scheduler offers all nodes again."""
    rng = random.Random(seed)
    racks = {"a": 4, "b": 4, "c": 3}
    size = rng.randint(2, 4)
    old = Leader(racks)
    pods = [member(f"m{i}", "", size, 4, RACK, GANG) for i in range(size)]
    goes: dict[str, str] = {}
    leader, fails_after = old, rng.randint(0, size)
    for i, each in enumerate(pods):
        if i == fails_after:
            leader = after_failover(old, racks, rng)
        taken = set(goes.values())
        offered = [n for name in rng.sample(list(racks), 2) for n in rack(name, racks[name])]
        passing = [n for n in (leader.filter(each, offered).node_names or ()) if n not in taken]
        if passing:
            goes[f"m{i}"] = rng.choice(passing)
    if leader is old:
        leader = after_failover(old, racks, rng)
    if len(goes) < size:
        goes = {}  # the gang waits whole, and is asked about again
    refused = []
    for each in rng.sample(pods, size):
        name = each["metadata"]["name"]
        if name not in goes or leader.bind(each, goes[name]):
            refused.append(each)
    for each in refused:
        assert leader.place(each) != ""
    nodes = {leader.node_of(each) for each in pods}
    assert len(nodes) == size
    assert len({str(node)[0] for node in nodes}) == 1
