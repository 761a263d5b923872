"""The replica that the Service names while leaders change."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler_extender.kube.bindable import OwnPod
from scheduler_extender.leader.address import Address, AddressWriter
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_extender.leader.replicas import NAMESPACE, SLICE
from topology.kubeapi.apiserver import ApiServer, ConflictError


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    with FakeApiServer() as found:
        yield found


@pytest.fixture
def api(fake: FakeApiServer, tmp_path: Path) -> Iterator[ApiServer]:
    found = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
    yield found
    found.close()


def replica(api: ApiServer, number: int, leads: Callable[[], bool]) -> AddressWriter:
    """The address of the replica at 10.0.0.``number``."""
    address = Address(f"10.0.0.{number}", 8888, "gpu-topology")
    return AddressWriter(api, OwnPod(NAMESPACE, f"pod-{number}"), address, leads)


def named(fake: FakeApiServer) -> list[str]:
    (endpoint,) = fake.read(SLICE)["endpoints"]
    return list(endpoint["addresses"])


@pytest.mark.parametrize("exists", [True, False], ids=["slice exists", "no slice yet"])
def test_a_former_leader_that_wakes_up_leaves_the_service_to_the_new_one(
    fake: FakeApiServer, api: ApiServer, *, exists: bool
) -> None:
    """It was paused after it had read the slice, and its clock stood still."""
    if exists:
        replica(api, 2, lambda: True).publish()

    def pause() -> bool:
        replica(api, 1, lambda: True).publish()
        return True

    with pytest.raises(ConflictError):
        replica(api, 0, pause).publish()
    assert named(fake) == ["10.0.0.1"]


def test_a_replica_that_lost_the_lease_while_reading_the_slice_writes_nothing(
    fake: FakeApiServer, api: ApiServer
) -> None:
    former = replica(api, 0, lambda: False)
    former.publish()
    assert fake.items(SLICE.rpartition("/")[0]) == []
    replica(api, 1, lambda: True).publish()
    former.publish()
    assert named(fake) == ["10.0.0.1"]
