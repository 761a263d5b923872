"""The queue of times: it yields each key when it is due, and stays as small as its keys are few."""

import random

from scheduler_extender.state.cluster.freshness import Due


def test_changed_times_and_dropped_keys_leave_no_entries() -> None:
    """Any user may change the time of a reservation, or drop its pod, as often as they like."""
    due = Due[str]()
    due.put("kept", 5.0)
    for i in range(1000):
        due.put("moved", 2000.0 - i)
        due.put(f"pod-{i}", 3000.0)
        due.drop(f"pod-{i}")
        assert len(due._queue) <= 4
    assert list(due.take(1001.0)) == ["kept", "moved"]
    due.drop("kept")
    due.drop("moved")
    assert not due._queue


def test_each_key_is_taken_once_when_it_is_due() -> None:
    """The queue agrees with a dictionary that is searched as a whole."""
    rng = random.Random(7)
    due, times = Due[str](), dict[str, float]()
    for now in range(300):
        for _ in range(rng.randrange(6)):
            key = f"k{rng.randrange(12)}"
            if rng.random() < 0.3:
                due.drop(key)
                times.pop(key, None)
            else:
                times[key] = now + rng.randrange(1, 40)
                due.put(key, times[key])
        expected = sorted(key for key, at in times.items() if at <= now)
        assert sorted(due.take(now)) == expected, now
        for key in expected:
            del times[key]
