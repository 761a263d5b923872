"""What of the kubelet's lists is taken for true, beyond the stories of ``../test_loop.py``."""

from dataclasses import replace

from tests.topology.agent.entries import entry, pod, pods
from topology.agent.model.holders import HoldersTracker
from topology.agent.model.nodecontext import NodeContext
from topology.agent.model.podentries import Entry
from topology.agent.model.polling import PollIntervals
from topology.core.devices import PodUid
from topology.core.numa import Holding, cpu_list, cpu_set

A, B = pod("1", "a", acknowledged=True), pod("2", "b", acknowledged=True)


def shown(tracker: HoldersTracker) -> dict[str, str]:
    found = {uid: [i for h in e.held for i in h.device_ids]
             for uid, e in tracker.holders.by_uid.items()}  # fmt: skip
    unknown = [i for e in tracker.holders.unidentified for h in e.held for i in h.device_ids]
    return {str(uid): " ".join(ids) for uid, ids in [*found.items(), ("?", unknown)] if ids}


def test_each_entry_of_a_pod_that_is_not_known_has_a_second_of_its_own() -> None:
    tracker, context = HoldersTracker(PollIntervals()), NodeContext(pods(A))
    b, c = entry("b", "G2"), entry("c", "G3")
    for at, entries, expected in (
        (0, [], {}),
        (1, [b], {}),
        (2, [b, c], {}),
        (3, [b, c], {"?": "G2 G3"}),
    ):
        tracker.take(entries, context, at, "", watchful=False)
        assert (shown(tracker), tracker.doubtful) == (expected, bool(entries)), at


def test_without_an_api_server_no_pod_is_waited_for() -> None:
    tracker = HoldersTracker(PollIntervals())
    alone = NodeContext({}, has_api_server=False)
    tracker.take([entry("b", "G2")], alone, 0, "", watchful=False)
    assert (shown(tracker), tracker.doubtful) == ({"?": "G2"}, False)


def test_a_delayed_list_does_not_say_when_or_what_was_known() -> None:
    tracker = HoldersTracker(PollIntervals())
    first = NodeContext({}, pods_version="7", deletions=1)
    tracker.take([], first, 0, "noon", watchful=False)
    later = NodeContext({}, pods_version="8", deletions=2)
    tracker.take([entry("b", "G2")], later, 1, "later", watchful=False)
    holders = tracker.holders
    assert (holders.observed_at, holders.pods_version, holders.deletions) == ("noon", "7", 1)
    tracker.take([entry("b", "G2")], later, 2, "later", watchful=False)
    holders = tracker.holders
    assert (holders.observed_at, holders.pods_version, holders.deletions) == ("later", "8", 2)


def test_the_former_agents_report_distinguishes_an_old_pod_from_its_successor() -> None:
    """The old pod was deleted by force, and the kubelet has not admitted the new one yet."""
    entries, context = [entry("a", "G1")], NodeContext(pods(pod("new", "a")))
    tracker = HoldersTracker(PollIntervals())
    tracker.remember({PodUid("old"): entry("a", "G1")})
    assert (shown(tracker), tracker.accepted) == ({"old": "G1"}, False)
    tracker.take(entries, context, 0, "", watchful=True)
    assert (shown(tracker), tracker.accepted) == ({"old": "G1"}, True)
    without = HoldersTracker(PollIntervals())
    without.take(entries, context, 0, "", watchful=True)
    assert (shown(without), without.doubtful) == ({}, True)


def test_some_pod_has_a_device() -> None:
    tracker = HoldersTracker(PollIntervals())
    tracker.take([entry("a")], NodeContext(pods(A)), 0, "", watchful=False)
    assert (tracker.holders.any_held, tracker.holders.device_ids) == (False, set())
    tracker.take([entry("a", "G1")], NodeContext(pods(A)), 0, "", watchful=False)
    assert (tracker.holders.any_held, tracker.holders.device_ids) == (True, {"G1"})


def test_cpus_stay_with_their_pods_over_a_restart_of_the_kubelet() -> None:
    """Of pods with GPUs and without; a list that is kept back says nothing of them either."""
    own, other = (
        replace(entry("a", "G1"), cpus=cpu_set("1")),
        replace(entry("b"), cpus=cpu_set("2")),
    )
    context = NodeContext(pods(A, B))
    tracker = HoldersTracker(PollIntervals())

    def cpus(*entries: Entry, at: float, watchful: bool = False) -> dict[str, str]:
        tracker.take(list(entries), context, at, "", watchful=watchful)
        return {h.pod: cpu_list(h.cpus) for h in tracker.holders.exclusive}

    both = {"a": "1", "b": "2"}
    assert cpus(own, other, at=0) == both
    assert tracker.holders.any_held
    assert cpus(at=1, watchful=True) == both
    assert cpus(own, at=2, watchful=True) == both
    assert cpus(own, entry("unknown", "G7"), at=3) == both, "kept back"
    assert cpus(own, at=4) == {"a": "1"}
    assert cpus(at=5) == {}


def test_cpus_of_plain_pods_are_remembered_by_name() -> None:
    tracker = HoldersTracker(PollIntervals())
    stays, gone = Holding("ns", "a", cpu_set("1")), Holding("ns", "gone", cpu_set("2"))
    tracker.remember({}, (stays, gone))
    assert [h.pod for h in tracker.holders.exclusive] == ["a", "gone"]
    tracker.take([], NodeContext(pods(A)), 0, "", watchful=True)
    assert tracker.holders.exclusive == (stays,)
