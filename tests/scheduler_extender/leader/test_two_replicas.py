"""Two replicas of the real service: who answers, who takes over, and what of the former's binds."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.kube.bindable import Bindable, OwnPod
from scheduler_extender.kube.binder import KubeBinder, Settler
from scheduler_extender.leader.fence import Fence
from scheduler_extender.state.cluster.freshness import Watch
from tests.fakes.apiserver import Request
from tests.nodes import pod
from tests.scheduler_extender.leader.replicas import (
    LEASE,
    NAME,
    NAMESPACE,
    SLICE,
    Replica,
    World,
    world,
)
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.core.devices import PodUid
from topology.kubeapi.apiserver import ApiUnreachable, ConflictError

WAKE = "gpu-topology.io/wake"


@pytest.fixture
def found(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as there:
        yield there


def leading(found: World, name: str = "a") -> Replica:
    replica = found.replica(name)
    eventually(replica.leads, f"{name} leads")
    return replica


def passing(found: World, replica: Replica, name: str = "") -> dict[str, Any]:
    """A pod that the replica has seen, with all GPUs of the node if it has a name."""
    made = found.create(pod(4, name=name, uid=name) if name else pod(2))
    eventually(lambda: replica.passes(made), "the pod passes")
    return made


def test_one_answers_and_both_are_ready(found: World) -> None:
    first = leading(found)
    second = found.replica("bb")
    train = passing(found, first)
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


def test_a_service_that_is_written_slowly_holds_up_no_renewal(
    found: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the Lease would run out although the leader is well."""
    monkeypatch.setattr("scheduler_extender.leader.address.TIMEOUT", FOREVER)
    found.fake.delay("/endpointslices", FOREVER)
    first = leading(found)
    eventually(lambda: _sent(found, "/endpointslices"), "the slice is asked for")
    renewed = len(_sent(found, "/leases/"))
    eventually(lambda: len(_sent(found, "/leases/")) > renewed + 10, "the Lease is renewed")
    assert found.lease()["spec"]["leaseTransitions"] == 1
    assert first.leads()


def _sent(found: World, part: str) -> list[Request]:
    return [request for request in found.fake.requests if part in request.path]


def _being_bound(
    found: World, by: Replica, manifest: dict[str, Any]
) -> tuple[threading.Thread, list[str]]:
    """A bind whose Binding was sent, and is held up by the fake; its answer comes into the list."""
    answers: list[str] = []
    bind = threading.Thread(target=lambda: answers.append(by.bind(manifest)))
    bind.start()
    eventually(lambda: _sent(found, "/binding"), "sent")
    return bind, answers


def test_a_pod_that_others_change_meanwhile_is_bound_all_the_same(found: World) -> None:
    """Its version is another one, and the bind is written once more with that."""
    first = leading(found)
    train = passing(found, first)
    found.fake.delay("/binding$", FOREVER)
    bind, answers = _being_bound(found, first, train)
    found.create({**pod(2), "metadata": {**train["metadata"], "labels": {"touched": "yes"}}})
    found.fake.allow()
    bind.join()
    assert answers == [""]
    assert found.node_of(train) == NAME


def test_a_pod_that_asks_for_something_else_by_now_is_not_bound_as_it_was_decided(
    found: World,
) -> None:
    """Its constraints are edited while the Binding is under way, and the second try would pass."""
    first = leading(found)
    train = passing(found, first)
    found.fake.delay("/binding$", FOREVER)
    bind, answers = _being_bound(found, first, train)
    notes = {"gpu-topology.io/link": "nvlink"}
    found.create({**pod(2), "metadata": {**train["metadata"], "annotations": notes}})
    found.fake.allow()
    bind.join()
    assert answers == [
        "the pod changed while it was being bound: its request was 2 GPUs and is now 2 GPUs "
        "link=nvlink; kube-scheduler tries again"
    ]
    assert found.node_of(train) is None
    assert list(first.cluster.snapshot().assumed.values()) == []
    assert first.bind(train) == "", "it is decided about anew"


def test_a_resigning_leader_is_replaced_at_once_and_no_pod_is_changed(found: World) -> None:
    first = leading(found)
    second = found.replica("bb")
    train = passing(found, first)
    first.leader.stop()
    eventually(second.leads, "the other leads")
    assert found.lease()["spec"]["leaseTransitions"] == 2
    assert WAKE not in (found.fake.items("/api/v1/pods")[0]["metadata"].get("annotations") or {})
    assert second.bind(train) == ""


def test_a_leader_that_is_cut_off_is_replaced_when_its_lease_has_expired(found: World) -> None:
    first = leading(found)
    second = found.replica("bb")
    assert not second.leads()
    train = found.create(pod(2))
    first.cut_off()
    found.succeeds(second)
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
    rival = found.create(pod(4, name="rival", uid="rival"))
    late = passing(found, first, "late")
    found.fake.delay("/pods/late/binding$", FOREVER)
    bind = threading.Thread(target=lambda: first.bind(late))
    bind.start()
    eventually(lambda: _sent(found, "/binding"), "sent")
    # All that the first sends from now on fails, but the bind is with the server.
    for what in ("read", "write"):
        monkeypatch.setattr(first.leader._store, what, _gone)
    found.succeeds(second)
    assert second.bind(rival) == ""
    found.fake.allow()
    bind.join()
    assert found.node_of(rival) == NAME
    assert found.node_of(late) is None


def test_a_bind_that_was_settled_as_unbound_cannot_be_written_later(
    found: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several API servers stands still with it, while another one answers us."""
    first = leading(found)
    rival = found.create(pod(4, name="rival", uid="rival"))
    late = passing(found, first, "late")
    sent: list[tuple[str, bytes]] = []

    def stands_still(path: str, body: bytes, *_: object, **__: object) -> bytes:
        sent.append((path, body))
        raise ApiUnreachable("no answer")

    with monkeypatch.context() as one_server:
        one_server.setattr(first.api, "create", stands_still)
        assert "may still be written" in first.bind(late)
    binder = KubeBinder(first.api, first.cluster, first.leader)
    settler = Settler(first.cluster, binder, patience=0.0)
    for now in range(2):
        settler.round(now)
    assert not list(first.cluster.snapshot().assumed.values())
    assert first.bind(rival) == ""
    with pytest.raises(ConflictError):
        first.api.create(*sent[-1], timeout=PATIENCE)


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
    found.succeeds(second)
    eventually(lambda: not first.leads(), "the watch has told it")
    assert first.leader._election.leads(until), "by its Lease it leads"


def test_a_bind_of_a_former_term_fails_though_its_writer_leads_again(
    found: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was decided before others bound pods, and is sent once more with a new version."""
    monkeypatch.setattr("scheduler_extender.kube.binder.WRITE_TIMEOUT", PATIENCE)
    first, second = leading(found), found.replica("bb")
    rival = found.create(pod(4, name="rival", uid="rival"))
    late = passing(found, first, "late")
    found.fake.delay("/pods/late/binding$", FOREVER)
    bind, answers = _being_bound(found, first, late)
    with monkeypatch.context() as cut_off:
        cut_off.setattr(first.leader._store, "write", _gone)
        found.succeeds(second)
    assert second.bind(rival) == ""
    second.leader.stop()
    eventually(first.leads, "the first leads again")
    found.fake.allow()
    bind.join()
    assert found.node_of(rival) == NAME
    assert found.node_of(late) is None
    assert answers == ["this replica does not lead any more"]


def _gone(*_: object, **__: object) -> None:
    raise ApiUnreachable("cut off")


def _deaf(*_: object) -> None:
    """Hears nothing of the Lease."""


def test_what_the_former_leader_bound_last_is_known(found: World) -> None:
    """Also if the watch of the new one is late with it."""
    first, second = leading(found), found.replica("bb")
    train, rival = (found.create(pod(4, name=name, uid=name)) for name in ("train", "rival"))
    eventually(lambda: first.leader.bindable.version(PodUid("train")), "its watch shows the pod")
    assert first.passes(train)
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
    passing(found, first)
    found.fake.refuse(422, None, path=r"/default/pods/")
    first.cut_off()
    found.succeeds(second)


@pytest.mark.parametrize("status", [403, 409, 429, 500])
def test_a_pod_that_a_webhook_keeps_from_being_changed_is_not_taken_for_changed(
    found: World, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A webhook answers with any status that it likes, and may be down for good."""
    monkeypatch.setattr("scheduler_extender.leader.fence.SETTLED_AFTER", 1.0)
    first = leading(found)
    passing(found, first)
    fence = Fence(first.api, first.leader.bindable, OwnPod(NAMESPACE, "a"), "somebody")
    found.fake.refuse(status, None, path="/default/pods/train$")
    assert fence.take_over(9, lambda: True, drained=False) == 0
    found.fake.allow()
    assert fence.take_over(10, lambda: True, drained=False) == 1


@pytest.mark.parametrize("status", [404, 403, 500])
def test_a_replica_that_cannot_take_over_leaves_it_to_the_other(
    found: World, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Its own pod is gone, or a webhook keeps it from being marked."""
    monkeypatch.setattr("scheduler_extender.leader.fence.MARKED_WITHIN", 1.0)
    found.fake.refuse(status, None, path=f"/{NAMESPACE}/pods/a$")
    first = found.replica("a")
    eventually(lambda: found.fake.items(LEASE.rpartition("/")[0]), "it has taken the Lease")
    second = found.replica("bb")
    eventually(second.leads, "the other leads")
    assert not first.leads()


def test_a_replica_that_does_not_see_its_mark_leaves_it_to_the_other(
    found: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its watch on pods stands still."""
    monkeypatch.setattr("scheduler_extender.leader.fence.MARKED_WITHIN", 1.0)
    monkeypatch.setattr(Bindable, "shown", _not_shown_to("a", Bindable.shown))
    found.replica("a")
    eventually(lambda: found.fake.items(LEASE.rpartition("/")[0]), "it has taken the Lease")
    second = found.replica("bb")
    eventually(second.leads, "the other leads")


def _not_shown_to(name: str, shown: Callable[..., bool]) -> Callable[..., bool]:
    def found(bindable: Bindable, mark: str, within: float) -> bool:
        return shown(bindable, mark, within) and bindable._own.name != name

    return found


def test_a_deleted_lease_costs_no_promise(found: World) -> None:
    first = leading(found)
    second = found.replica("bb")
    found.fake.remove(LEASE)
    eventually(lambda: found.fake.items(LEASE.rpartition("/")[0]), "it is there again")
    assert found.lease()["spec"]["leaseTransitions"] > 1, "in a later term"
    eventually(lambda: first.leads() != second.leads(), "one of them leads")


def test_a_stale_leader_leaves_the_lease_to_a_replica_that_sees(
    found: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_extender.leader.election.OFFERED_AFTER", 0.5)
    first, second = leading(found), found.replica("bb")
    seen = second.cluster.watches
    for replica in (first, second):
        replica.cluster.watches = lambda: [Watch("pods", None)]
    eventually(lambda: found.lease()["metadata"].get("annotations"), "the Lease is offered")
    assert found.lease()["metadata"]["annotations"] == {"gpu-topology.io/offered": "true"}
    looks = len(_sent(found, "/leases/"))
    eventually(lambda: len(_sent(found, "/leases/")) > looks + 10, "both look at it")
    assert first.leads(), "nobody sees, so nobody takes it"
    second.cluster.watches = seen
    eventually(second.leads, "the other leads")
    eventually(lambda: not first.leads(), "the first leads no more")
    assert found.lease()["spec"]["leaseTransitions"] == 2
    assert not found.lease()["metadata"].get("annotations")
