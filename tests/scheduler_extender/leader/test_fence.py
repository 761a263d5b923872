"""For how long a takeover waits where a pod cannot be changed."""

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


class Takeover:
    """A replica whose pod may be marked, and a pod that cannot be changed; it asks all the time
    whether its Lease lasts, and its watch shows it its own pod meanwhile."""

    def __init__(self, fake: FakeApiServer, folder: Path) -> None:
        fake.put("/api/v1/pods", {"metadata": {"name": "me", "namespace": NAMESPACE}, "spec": {}})
        fake.put("/api/v1/pods", {"metadata": {"name": "train", "namespace": "default"}})
        fake.refuse(422, None, path="/default/pods/train$")
        self.fake, self.bindable, self.clock = fake, Bindable(OWN, "me_1"), Clock()
        self.api = ApiServer.from_kubeconfig(fake.write_kubeconfig(folder / "kubeconfig"))

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds

    def lasts(self) -> bool:
        own = self.fake.read(f"/api/v1/namespaces/{NAMESPACE}/pods/me")
        self.bindable.take(pod_decoder.decode(raw(own)), managed=False)
        return True

    def take_over(self, former_for: float = 0.0) -> None:
        fence = Fence(self.api, self.bindable, OWN, "me_1", self.clock, self.sleep)
        assert fence.take_over(2, self.lasts, drained=False, former_for=former_for) == 0


@pytest.fixture
def takeover(tmp_path: Path) -> Iterator[Takeover]:
    with FakeApiServer() as fake:
        found = Takeover(fake, tmp_path)
        yield found
        found.api.close()
        fake.allow()


TOO_MUCH = {
    "annotations": Pod(ObjectMeta(annotations={str(n): "" for n in range(46_000)})),
    "bytes of annotations": Pod(ObjectMeta(annotations={"full": "x" * 262_000})),
    "tolerations": Pod(spec=PodSpec(tolerations=[Toleration()] * 10_000)),
}


@pytest.mark.parametrize("why", TOO_MUCH)
def test_no_takeover_waits_for_a_pod_too_large_to_read(takeover: Takeover, why: str) -> None:
    """No replica binds such a version of a pod, so no bind of it can come; the API server may
    refuse to change it, or take half a minute."""
    asked = Pod(ObjectMeta("train", "default", "uid-1", resource_version="1"))
    takeover.bindable.take(asked, managed=True)
    greedy = structs.replace(TOO_MUCH[why].metadata, name="train", namespace="default", uid="uid-1")
    takeover.bindable.take(structs.replace(TOO_MUCH[why], metadata=greedy), managed=True)
    takeover.take_over()
    assert takeover.clock.now < SETTLED_AFTER / 2
    assert takeover.bindable.version(PodUid("uid-1")) is None


@pytest.mark.parametrize("former_for", [0.0, 18.0])
def test_it_waits_for_the_former_lease_and_then_for_writes(
    takeover: Takeover, former_for: float
) -> None:
    """A pod that cannot be changed may be bound by the former leader, up to then."""
    takeover.bindable.take(Pod(metadata=ObjectMeta("train", "default", "uid-1")), managed=True)
    takeover.take_over(former_for)
    assert takeover.clock.now == pytest.approx(former_for + SETTLED_AFTER, abs=1.0)
