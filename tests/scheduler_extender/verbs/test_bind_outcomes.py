"""Binds with an unknown outcome, late binds, and refused ones."""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler_extender import verbs
from scheduler_extender.framework import evaluator
from scheduler_extender.framework.awaited import RECORD_WITHOUT_CLAIMS
from scheduler_extender.framework.setrules.assumed import ASSUMED
from scheduler_extender.kube.binder import KubeBinder, Settler
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import (
    TOO_LATE,
    BindError,
    Binding,
    BindUnknownError,
    NotWrittenError,
    assume,
)
from scheduler_extender.wire import BindingArgs
from tests.deadlines import ending_when
from tests.nodes import bridged, pod, record_of, switched
from tests.scheduler_extender.binding import Written, bind_error
from tests.scheduler_extender.conftest import Kube
from tests.scheduler_extender.serving import Running, running
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.core.devices import GpuUuid, NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.report import Health, Report
from topology.core.requests import Constraints
from topology.kubeapi.apiserver import ApiNotSent

CLAIMED = {"requestMappings": [{"resourceName": "nvidia.com/gpu"}]}
NVLINK = {"link": "nvlink"}
GROUP = {"group": "train", "group-size": "2", "group-domain": "node"}
PATH = "/api/v1/namespaces/default/pods/train"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_extender.kube.binder.WRITE_TIMEOUT", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_late_commit_finds_its_gpus_still_held(kube: Kube, bound: Running) -> None:
    """The write is under way when we give up; a GET says unbound; then it is committed."""
    train = kube.create(pod(4, NVLINK))
    kube.sees(train)
    kube.fake.delay("/binding$", FOREVER)
    assert "may still be written" in bound.bind(train, "switched")
    assert "nodeName" not in kube.fake.read(PATH)["spec"], "the test is of a commit to come"
    rival = pod(4, NVLINK, name="rival", uid="uid-2")
    assert bound.filter(rival, "switched")["FailedNodes"] == {"switched": "not enough free GPUs"}
    settler = Settler(kube.cluster, kube.binder, patience=10)
    settler.round(0)
    settler.round(9)
    assert len(kube.cluster.snapshot().assumed) == 1
    kube.fake.allow()
    eventually(lambda: kube.fake.read(PATH)["spec"].get("nodeName") == "switched")
    assert bound.filter(rival, "switched")["NodeNames"] == []
    settler.round(11)
    assert not kube.cluster.snapshot().assumed
    (found,) = kube.cluster.node_info(NodeName("switched")).pods.every
    assert found.name == "train"
    assert found.promised == Constraints(link=LinkKind.NVLINK), "the promise is kept in mind"
    assert bound.filter(rival, "switched")["NodeNames"] == []


@pytest.mark.parametrize(
    ("first", "edited"),
    [
        (NVLINK, {"link": "pix"}),
        (NVLINK, {"link": "no such link"}),
        (NVLINK, {**NVLINK, **GROUP}),
        (GROUP, {**GROUP, "group": "other"}),
        (GROUP, {}),
    ],
)
def test_a_pod_that_is_edited_between_decision_and_write_is_not_bound(
    kube: Kube, bound: Running, first: dict[str, str], edited: dict[str, str]
) -> None:
    """As while its bind waits for its turn."""
    refused = refused_over_changes(kube, pod(2, first), pod(2, edited))
    assert re.search(r"changed while (it|the pod) was being bound", refused)


@pytest.mark.parametrize("asks", [NVLINK, {}], ids=["required", "plain"])
def test_a_pod_found_to_have_a_claim_is_not_bound_by_a_plugins_record(
    kube: Kube, bound: Running, asks: dict[str, str]
) -> None:
    """As on a node that has just moved to DRA."""
    claimed = pod(2, asks, extendedResourceClaimStatus=CLAIMED)
    assert refused_over_changes(kube, pod(2, asks), claimed) == RECORD_WITHOUT_CLAIMS.message


def refused_over_changes(kube: Kube, known: dict[str, Any], news: dict[str, Any]) -> str:
    """Why a bind is refused where there is news of the pod right before the write."""
    kube.sees(kube.create(known))
    asked = 0

    def late() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            kube.sees(news)
        return False

    args = BindingArgs("train", "default", "uid-1", "switched")
    with pytest.raises(BindError) as refused:
        verbs.bind(kube.cluster, kube.binder, args, lambda: "now", ending_when(late))
    assert asked == 2
    assert kube.bindings() == 0
    assert not kube.cluster.snapshot().assumed
    return str(refused.value)


def test_a_pod_whose_bind_may_be_written_yet_is_bound_nowhere_else(
    kube: Kube, bound: Running
) -> None:
    train = kube.create(pod(2, NVLINK))
    kube.sees(train)
    kube.fake.refuse(503, path="/binding$")
    assert bound.bind(train, "switched") != ""
    answer = bound.filter(train, "switched", "bridged")
    assert answer["NodeNames"] == ["switched"]
    assert answer["FailedAndUnresolvableNodes"] == {"bridged": ASSUMED.message}
    assert "has not finished" in bound.bind(train, "bridged")
    assert bound.bind(train, "switched") == ""
    assert kube.fake.read(PATH)["spec"]["nodeName"] == "switched"


@pytest.mark.parametrize("status", [500, 503, 504])
def test_unbound_has_to_be_read_twice(kube: Kube, bound: Running, status: int) -> None:
    """A server that stood still handles what waited in its socket once it runs again."""
    train = kube.create(pod(4, NVLINK))
    kube.sees(train)
    kube.fake.refuse(status, path="/binding$")
    assert bound.bind(train, "switched") != ""
    assert bound.filter(pod(1, uid="next"), "switched")["NodeNames"] == []
    settler = Settler(kube.cluster, kube.binder, patience=10)
    for now, flying in ((0, 1), (9, 1), (10, 1), (19, 1), (20, 0)):
        settler.round(now)
        assert len(kube.cluster.snapshot().assumed) == flying, now
    assert bound.filter(pod(1, uid="next"), "switched")["NodeNames"] == ["switched"]


def test_a_read_that_fails_settles_nothing(kube: Kube, bound: Running) -> None:
    train = kube.create(pod(4, NVLINK))
    kube.sees(train)
    kube.fake.refuse(503, times=None, path="/pods/train")
    assert bound.bind(train, "switched") != ""
    settler = Settler(kube.cluster, kube.binder, patience=10)
    for now in (0, 10, 20, 30):
        settler.round(now)
    assert len(kube.cluster.snapshot().assumed) == 1


def test_a_pod_that_cannot_be_judged_after_the_write_stays_assumed(
    kube: Kube, bound: Running
) -> None:
    """The write may be committed, whatever the API server says of the pod's containers by then."""
    kube.create(pod(containers=[{"name": "main"}]))
    train = pod(4, NVLINK)
    kube.sees(train)
    kube.fake.refuse(503, path="/binding$")
    assert "requests none of" in bound.bind(train, "switched")
    assert len(kube.cluster.snapshot().assumed) == 1


def test_the_second_reading_is_late_also_where_the_first_was(kube: Kube) -> None:
    """One slow reading after the other: a bind may be read long after its round began."""
    now, slow = [0.0], True
    kube.cluster.put_record(switched(), Report("boot", 1))
    for i in range(2):
        manifest = kube.create(pod(1, name=f"p{i}", uid=f"u{i}"))
        kube.cluster.assume(NodeName("switched"), record_of(manifest))

    class Slow(KubeBinder):
        def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
            now[0] += 30 * slow
            return super().find(namespace, name, uid)

    settler = Settler(kube.cluster, Slow(kube.api, kube.cluster), patience=10, clock=lambda: now[0])
    settler.round(now[0])
    now[0] = 10
    settler.round(now[0])
    assert now[0] == 70
    slow = False
    settler.round(now[0])
    assert [p.uid for p in list(kube.cluster.snapshot().assumed.values())] == ["u1"], (
        "u1 was read just now"
    )
    now[0] += 10
    settler.round(now[0])
    assert not kube.cluster.snapshot().assumed


class InterruptedBinder(KubeBinder):
    """Something happens while the settler reads a pod."""

    def __init__(self, kube: Kube, happens: Callable[[PodUid], PodRecord]) -> None:
        super().__init__(kube.api, kube.cluster)
        self.happens = happens

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        return self.happens(uid)


def settle(kube: Kube, happens: Callable[[PodUid], PodRecord]) -> None:
    kube.cluster.put_record(switched(), Report("boot", 1))
    assert kube.cluster.assume(NodeName("switched"), record_of(pod(4)))
    settler = Settler(kube.cluster, InterruptedBinder(kube, happens), patience=1)
    for now in (0, 2):
        settler.round(now)


def test_the_settler_leaves_a_newer_bind_alone(kube: Kube) -> None:
    def bound_anew(uid: PodUid) -> PodRecord:
        assert kube.cluster.assume(NodeName("switched"), record_of(pod(4)))
        return record_of(pod(4))

    settle(kube, bound_anew)
    assert len(kube.cluster.snapshot().assumed) == 1


def test_the_settler_does_not_revive_a_deleted_pod(kube: Kube) -> None:
    def deleted(uid: PodUid) -> PodRecord:
        kube.cluster.drop_pod(uid)
        return record_of(pod(4, node="switched"))

    settle(kube, deleted)
    assert kube.cluster.node_info(NodeName("switched")).pods.every == ()


def test_a_repeated_bind_does_not_write_what_no_longer_holds(kube: Kube, bound: Running) -> None:
    train = kube.create(pod(2, NVLINK))
    kube.sees(train)
    kube.fake.refuse(503, path="/binding$")
    assert bound.bind(train, "switched") != ""
    sick = tuple(Health(gpu.uuid, False, "Xid79") for gpu in switched().gpus)
    kube.cluster.put_report(NodeName("switched"), Report("boot", 2, health=sick))
    assert "would hand out a sick GPU" in bound.bind(train, "switched")
    assert kube.bindings() == 1
    (kept,) = kube.cluster.snapshot().assumed.values()
    assert kept.promised == Constraints(link=LinkKind.NVLINK)


def test_a_bind_that_is_refused_again_and_again_ends(kube: Kube, bound: Running) -> None:
    """The first may be written yet; those after it are surely not, and prolong nothing."""
    train = kube.create(pod(2, NVLINK))
    kube.sees(train)
    kube.fake.refuse(503, path="/binding$")
    assert bound.bind(train, "switched") != ""
    settler = Settler(kube.cluster, kube.binder, patience=10)
    settler.round(0)
    create = kube.api.create

    def evaluated(*args: Any, **more: Any) -> bytes:
        settler.round(now)  # a round while the write is under way
        return create(*args, **more)

    kube.binder._api.create = evaluated  # type: ignore[method-assign]
    for now in (4, 8, 12, 16, 20):
        kube.fake.refuse(403, path="/binding$")
        assert "refused the bind" in bound.bind(train, "switched")
        settler.round(now)
        assert len(kube.cluster.snapshot().assumed) == 1, now
    settler.round(22)
    assert not kube.cluster.snapshot().assumed


def test_a_failed_bind_does_not_undo_the_one_after_it(kube: Kube) -> None:
    """Two schedulers for a moment: the older bind is refused while the newer one is open."""
    kube.cluster.put_record(switched(), Report("boot", 1))
    kube.sees(pod(2, NVLINK))

    class Twice(Written):
        def write(self, binding: Binding) -> None:
            super().write(binding)
            if len(self.bindings) == 1:
                with pytest.raises(BindError, match="no answer"):
                    verbs.bind(kube.cluster, self, ARGS, lambda: "now")
                raise NotWrittenError("refused")
            raise BindUnknownError("no answer")

    binder = Twice()
    with pytest.raises(BindError, match="refused"):
        verbs.bind(kube.cluster, binder, ARGS, lambda: "now")
    assert len(binder.bindings) == 2
    assert [p.uid for p in list(kube.cluster.snapshot().assumed.values())] == ["uid-1"]


def test_once_a_bind_is_settled_every_node_counts_as_changed_for_its_pod(
    kube: Kube, bound: Running
) -> None:
    train = kube.create(pod(2))
    kube.sees(train)
    kube.fake.refuse(503, path="/binding$")
    assert bound.bind(train, "switched") != ""
    assert bound.filter(train, "bridged")["NodeNames"] == []
    changed: list[NodeName] = []
    kube.cluster.on_change.append(changed.append)
    settler = Settler(kube.cluster, kube.binder, patience=10)
    for now in (0, 10, 20):
        settler.round(now)
    assert bound.filter(train, "bridged")["NodeNames"] == ["bridged"]
    assert "bridged" in changed


def test_what_was_never_sent_is_released(kube: Kube, bound: Running) -> None:
    """No server listens: the API server cannot have received it."""
    train = kube.create(pod(2, NVLINK))
    kube.sees(train)

    def down(*_: object, **__: object) -> bytes:
        raise ApiNotSent("connection refused")

    kube.binder._api.create = down  # type: ignore[method-assign]
    assert "could not be sent" in bound.bind(train, "switched")
    assert not kube.cluster.snapshot().assumed


def test_a_refused_connection_is_distinguished(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube.api._configuration, "host", "http://127.0.0.1:1")
    with pytest.raises(ApiNotSent):
        kube.api.create("/api/v1/pods", b"{}", timeout=PATIENCE)


ARGS = BindingArgs("train", "default", "uid-1", "switched")


@pytest.mark.parametrize("answers", [(True,), (False, True)], ids=["queued", "while-deciding"])
def test_a_bind_that_the_scheduler_has_given_up_is_not_written(
    kube: Kube, answers: tuple[bool, ...]
) -> None:
    kube.cluster.put_record(switched(), Report("boot", 1))
    kube.sees(pod(2, NVLINK))
    left, binder = list(answers), Written()
    with pytest.raises(BindError, match=TOO_LATE):
        verbs.bind(kube.cluster, binder, ARGS, lambda: "now", ending_when(lambda: left.pop(0)))
    assert binder.bindings == []
    assert not kube.cluster.snapshot().assumed
    assert left == []


def test_binds_that_waited_behind_slow_writes_are_refused(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP: one thread writes slowly, three binds wait behind it for too long."""
    monkeypatch.setattr("scheduler_extender.http.app.BIND_THREADS", 1)
    pods = [kube.create(pod(1, name=f"p{i}", uid=f"u{i}")) for i in range(4)]
    for manifest in pods:
        kube.sees(manifest)
    kube.fake.delay("/binding$", FOREVER)
    with (
        running(switched(), binder=kube.binder, cluster=kube.cluster, clock=kube.clock) as service,
        ThreadPoolExecutor(4) as pool,
    ):
        binds = [pool.submit(service.bind, pods[0], "switched")]
        try:
            eventually(lambda: kube.bindings() == 1)
            one_body = service.service.bodies.held
            monkeypatch.setattr("scheduler_extender.http.app.BIND_STARTS_WITHIN", 0.1)
            binds += [pool.submit(service.bind, manifest, "switched") for manifest in pods[1:]]
            eventually(lambda: service.service.bodies.held == 4 * one_body)
            time.sleep(0.2)
        finally:
            kube.fake.allow()
        assert [one.result() for one in binds] == ["", TOO_LATE, TOO_LATE, TOO_LATE]
    assert kube.bindings() == 1
    assert len(kube.cluster.snapshot().assumed) == 1


def test_a_pod_without_gpus_is_not_ours_to_bind(kube: Kube, bound: Running) -> None:
    plain = kube.create(pod(None))
    assert "requests none of nvidia.com/gpu" in bound.bind(plain, "switched")
    assert kube.bindings() == 0


@pytest.mark.parametrize("annotations", [{}, NVLINK], ids=["plain", "required"])
def test_a_node_that_does_not_exist_gets_no_pod(
    kube: Kube, bound: Running, annotations: dict[str, str]
) -> None:
    kube.cluster.put_node(NodeName("switched"), NodeObject())
    train = kube.create(pod(2, annotations))
    assert "does not exist" in bound.bind(train, "nowhere")
    assert "does not exist" in bound.bind(train, "bridged"), "a record alone is no node"
    assert kube.bindings() == 0
    assert bound.bind(train, "switched") == ""


# A bind is decided with no lock held, and holds only for the state that was decided about.


def _bind(running: Running, uid: str = "uid-1") -> str:
    args = BindingArgs("train", "default", PodUid(uid), "bridged")
    return bind_error(running.cluster, running.service.binder, args)


class DecidedMeanwhile:
    """Lets something happen while a bind is being decided."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
        self.decided = 0
        real = evaluator.evaluate

        def evaluate(*args: Any) -> Any:
            found = real(*args)
            self.decided += 1
            happens()
            return found

        monkeypatch.setattr(assume, "evaluate", evaluate)


def test_a_node_that_changes_while_a_bind_is_decided_is_decided_about_again(
    kube: Kube, bound: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pod is bound in between and takes what was free."""
    kube.sees(kube.create(pod(2)))
    others = iter([pod(4, name="other", uid="uid-2", node="bridged")])

    def happens() -> None:
        for other in others:
            kube.sees(other)

    meanwhile = DecidedMeanwhile(monkeypatch, happens)
    assert _bind(bound) == "not enough free GPUs"
    assert meanwhile.decided == 2
    assert not kube.cluster.snapshot().assumed
    assert kube.bindings() == 0


def test_a_heartbeat_meanwhile_changes_nothing(
    kube: Kube, bound: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.sees(kube.create(pod(1)))
    sequences = iter(range(2, 100))
    meanwhile = DecidedMeanwhile(
        monkeypatch,
        lambda: kube.cluster.put_record(bridged(), Report("boot", next(sequences))),
    )
    assert _bind(bound) == ""
    assert meanwhile.decided == 1


def test_a_node_that_never_stands_still_is_decided_about_with_the_lock_held(
    kube: Kube, bound: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.sees(kube.create(pod(1)))
    numbers = iter(range(10, 100))

    others: list[threading.Thread] = []

    def happens() -> None:
        """Every report is a change. None can come in while another thread holds the lock."""
        number = next(numbers)
        sick = (Health(GpuUuid(f"GPU-{number % 4}"), False, "x"),)
        report = Report("boot", number, health=sick)
        others.append(
            threading.Thread(target=kube.cluster.put_record, args=(bridged(), report), daemon=True)
        )
        others[-1].start()
        # With the lock held it cannot come in, however long we wait for it.
        others[-1].join(0.3 if len(others) > assume.TRIES else PATIENCE)

    meanwhile = DecidedMeanwhile(monkeypatch, happens)
    assert _bind(bound) == ""
    assert meanwhile.decided == assume.TRIES + 1
    for thread in others:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_pod_assumed_elsewhere_meanwhile_is_not_assumed_twice(
    kube: Kube, bound: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.sees(kube.create(pod(1)))
    known = kube.cluster.pod(PodUid("uid-1"))
    assert known is not None
    DecidedMeanwhile(monkeypatch, lambda: void(kube.cluster.assume(NodeName("switched"), known)))
    assert "has not finished" in _bind(bound)
    assert [p.node for p in list(kube.cluster.snapshot().assumed.values())] == ["switched"]


def void(_: object) -> None:
    """Nothing is done with it."""
