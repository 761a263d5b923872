"""For how long a takeover waits where a pod cannot be changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from scheduler_extender.kube.bindable import Bindable, OwnPod
from scheduler_extender.kube.binder import SETTLED_AFTER
from scheduler_extender.leader.fence import Fence
from scheduler_extender.wire import ObjectMeta, Pod, PodSpec, Toleration, pod_decoder
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_extender.conftest import raw
from tests.scheduler_extender.leader.replicas import NAMESPACE
from tests.scheduler_extender.serving import Clock
from topology.core.devices import PodUid
from topology.kubeapi.apiserver import ApiServer

OWN = OwnPod(NAMESPACE, "me")


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    with FakeApiServer() as found:
        own = {"metadata": {"name": "me", "namespace": NAMESPACE}, "spec": {}}
        found.put("/api/v1/pods", own)
        found.put("/api/v1/pods", {"metadata": {"name": "train", "namespace": "default"}})
        yield found
        found.allow()


TOO_MUCH = {
    "annotations": Pod(ObjectMeta(annotations={str(n): "" for n in range(46_000)})),
    "bytes of annotations": Pod(ObjectMeta(annotations={"full": "x" * 262_000})),
    "tolerations": Pod(spec=PodSpec(tolerations=[Toleration()] * 10_000)),
}


@pytest.mark.parametrize("why", TOO_MUCH)
def test_nobody_waits_for_a_pod_that_says_more_than_any_replica_reads(
    fake: FakeApiServer, tmp_path: Path, why: str
) -> None:
    """No replica binds such a version of a pod, so no bind of it can come; the API server may
    refuse to change it, or take half a minute."""
    api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
    bindable, clock = Bindable(OWN, "me_1"), Clock()
    asked = Pod(ObjectMeta("train", "default", "uid-1", resource_version="1"))
    bindable.take(asked, managed=True)
    greedy = structs.replace(TOO_MUCH[why].metadata, name="train", namespace="default", uid="uid-1")
    bindable.take(structs.replace(TOO_MUCH[why], metadata=greedy), managed=True)
    fake.refuse(422, None, path="/default/pods/train$")

    def lasts() -> bool:
        own = fake.read(f"/api/v1/namespaces/{NAMESPACE}/pods/me")
        bindable.take(pod_decoder.decode(raw(own)), managed=False)
        return True

    def sleep(seconds: float) -> None:
        clock.now += seconds

    fence = Fence(api, bindable, OWN, "me_1", clock, sleep)
    assert fence.take_over(2, lasts, drained=False) == 0
    api.close()
    assert clock.now < SETTLED_AFTER / 2
    assert bindable.version(PodUid("uid-1")) is None


@pytest.mark.parametrize("former_for", [0.0, 18.0])
def test_it_waits_for_the_former_lease_and_then_for_writes(
    fake: FakeApiServer, tmp_path: Path, former_for: float
) -> None:
    """A pod that cannot be changed may be bound by whoever led before, up to then."""
    api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
    bindable = Bindable(OWN, "me_1")
    bindable.take(Pod(metadata=ObjectMeta("train", "default", "uid-1")), managed=True)
    fake.refuse(422, None, path="/default/pods/train$")
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    def lasts() -> bool:  # asked all the time: our watch shows our own pod meanwhile
        own = fake.read(f"/api/v1/namespaces/{NAMESPACE}/pods/me")
        bindable.take(pod_decoder.decode(raw(own)), managed=False)
        return True

    fence = Fence(api, bindable, OWN, "me_1", clock, sleep)
    assert fence.take_over(2, lasts, drained=False, former_for=former_for) == 0
    api.close()
    assert clock.now == pytest.approx(former_for + SETTLED_AFTER, abs=1.0)
