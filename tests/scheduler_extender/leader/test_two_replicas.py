"""Two replicas of the real service: who answers, who takes over, and what of the former's binds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_extender.verbs import BindError
from tests.nodes import pod
from tests.scheduler_extender.leader.replicas import LEASE, NAME, SLICE, Replica, World, world
from tests.waiting import FOREVER, eventually
from topology.kubeapi.apiserver import ApiUnreachable

WAKE = "gpu-topology.io/wake"


@pytest.fixture
def found(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as there:
        yield there


def leading(found: World, name: str = "a") -> Replica:
    replica = found.replica(name)
    eventually(replica.leads, f"{name} leads")
    return replica


def test_one_answers_and_both_are_ready(found: World) -> None:
    first = leading(found)
    second = found.replica("bb")
    train = found.create(pod(2))
    eventually(lambda: first.passes(train), "the pod passes")
    answer = second.post("filter", {"Pod": train, "Nodes": None, "NodeNames": [NAME]})
    assert answer.status_code == 503
    assert answer.json() == {"error": "this replica does not lead"}
    assert answer.headers["connection"] == "close"
    for verb in ("bind", "prioritize", "preempt"):
        assert second.post(verb, {}).status_code == 503
    assert second.http.get("/readyz").status_code == 200


def test_the_service_names_the_leader(found: World) -> None:
    first = leading(found)
    eventually(lambda: found.fake.items(SLICE.rpartition("/")[0]), "the slice is there")
    (endpoint,) = found.fake.read(SLICE)["endpoints"]
    assert endpoint["addresses"] == ["10.0.0.1"]
    assert found.fake.read(SLICE)["metadata"]["labels"] == {
        "kubernetes.io/service-name": "gpu-topology",
        "endpointslice.kubernetes.io/managed-by": "gpu-topology.io",
    }
    second = found.replica("bb")
    first.leader.stop()
    eventually(second.leads, "the other leads")
    eventually(
        lambda: found.fake.read(SLICE)["endpoints"][0]["addresses"] == ["10.0.0.2"],
        "the Service names the other",
    )


def test_a_pod_that_others_change_meanwhile_is_bound_all_the_same(found: World) -> None:
    """Its version is another one, and the bind is written once more with that."""
    first = leading(found)
    train = found.create(pod(2))
    eventually(lambda: first.passes(train), "the pod passes")
    found.fake.delay("/binding$", FOREVER)
    answers: list[str] = []
    bind = threading.Thread(target=lambda: answers.append(first.bind(train)))
    bind.start()
    eventually(lambda: [r for r in found.fake.requests if r.path.endswith("/binding")], "sent")
    found.create({**pod(2), "metadata": {**train["metadata"], "labels": {"touched": "yes"}}})
    found.fake.allow()
    bind.join()
    assert answers == [""]
    assert found.node_of(train) == NAME


def test_who_resigns_is_followed_at_once_and_no_pod_is_changed(found: World) -> None:
    first = leading(found)
    second = found.replica("bb", seconds=100.0)  # far longer than anybody waits here
    train = found.create(pod(2))
    eventually(lambda: first.passes(train), "the pod passes")
    first.leader.stop()
    eventually(second.leads, "the other leads")
    assert found.lease()["spec"]["leaseTransitions"] == 2
    assert WAKE not in (found.fake.items("/api/v1/pods")[0]["metadata"].get("annotations") or {})
    assert second.bind(train) == ""


def test_who_is_cut_off_is_followed_when_its_lease_has_run_out(found: World) -> None:
    first = leading(found)
    second = found.replica("bb")
    assert not second.leads()
    train = found.create(pod(2))
    first.cut_off()
    eventually(second.leads, "the other leads")
    assert (
        WAKE in found.fake.read("/api/v1/namespaces/default/pods/train")["metadata"]["annotations"]
    )
    assert second.bind(train) == ""
    assert not first.leads()
    assert first.post("bind", {}).status_code == 503


def test_a_bind_of_the_former_leader_that_comes_late_fails(
    found: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on its way while another takes over, and all four GPUs are given to another pod."""
    first, second = leading(found), found.replica("bb")
    late, rival = (found.create(pod(4, name=name, uid=name)) for name in ("late", "rival"))
    eventually(lambda: first.passes(late), "the pod passes")
    found.fake.delay("/pods/late/binding$", FOREVER)
    bind = threading.Thread(target=lambda: first.bind(late))
    bind.start()
    eventually(lambda: [r for r in found.fake.requests if r.path.endswith("/binding")], "sent")
    # All that the first sends from now on fails, but the bind is with the server.
    for what in ("read", "write"):
        monkeypatch.setattr(first.leader._store, what, _gone)
    eventually(second.leads, "the other leads")
    assert second.bind(rival) == ""
    found.fake.allow()
    bind.join()
    assert found.node_of(rival) == NAME
    assert found.node_of(late) is None


def test_a_former_leader_whose_clock_stands_still_binds_nothing(
    found: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Lease never runs out by its clock. The watch tells it that another term has begun."""
    first = leading(found)
    until = first.leader._clock() + 1
    monkeypatch.setattr(first.leader, "_clock", lambda: until)
    second = found.replica("bb")
    for what in ("read", "write"):
        monkeypatch.setattr(first.leader._store, what, _gone)
    monkeypatch.setattr(first.leader._election, "saw", _deaf)
    eventually(second.leads, "the other leads")
    eventually(lambda: not first.leads(), "the watch has told it")
    assert first.leader._election.leads(until), "by its Lease it leads"


def test_what_was_decided_in_one_term_is_not_written_in_a_later_one(
    found: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bind may stand still while its replica loses the Lease and gets it back."""
    first, second = leading(found), found.replica("bb")
    decided = first.leader.term
    with monkeypatch.context() as cut_off:
        for what in ("read", "write"):
            cut_off.setattr(first.leader._store, what, _gone)
        eventually(second.leads, "the other leads")
    second.leader.stop()
    eventually(first.leads, "it leads again")
    with pytest.raises(BindError, match="does so anew"), first.leader.writing(decided):
        pytest.fail("it would be written")
    with first.leader.writing(first.leader.term):
        pass


def _gone(*_: object, **__: object) -> None:
    raise ApiUnreachable("cut off")


def _deaf(*_: object) -> None:
    """Hears nothing of the Lease."""


def test_what_the_former_leader_bound_last_is_known(found: World) -> None:
    """Also if the watch of the new one is late with it."""
    first, second = leading(found), found.replica("bb")
    train, rival = (found.create(pod(4, name=name, uid=name)) for name in ("train", "rival"))
    eventually(lambda: first.passes(train), "the pod passes")
    found.fake.stall()
    assert first.bind(train) == ""
    first.leader.resign()
    eventually(lambda: not found.lease()["spec"]["holderIdentity"].startswith("a"), "resigned")
    assert not second.leads(), "its watch has shown nothing yet"
    found.fake.resume()
    eventually(second.leads, "the other leads")
    assert not second.passes(rival)


def test_a_pod_that_cannot_be_changed_holds_the_new_leader_up(
    found: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a webhook refuses: nothing but time ends a write about it."""
    monkeypatch.setattr("scheduler_extender.leader.fence.SETTLED_AFTER", 1.0)
    first, second = leading(found), found.replica("bb")
    train = found.create(pod(2))
    eventually(lambda: first.passes(train), "the pod passes")
    found.fake.refuse(422, None, path=r"/default/pods/")
    first.cut_off()
    eventually(second.leads, "the other leads")


def test_a_lease_that_somebody_deletes_costs_no_promise(found: World) -> None:
    first = leading(found)
    second = found.replica("bb")
    found.fake.remove(LEASE)
    eventually(lambda: found.fake.items(LEASE.rpartition("/")[0]), "it is there again")
    assert found.lease()["spec"]["leaseTransitions"] > 1, "in a later term"
    eventually(lambda: first.leads() != second.leads(), "one of them leads")
