"""Whom the Service names while leaders change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_extender.kube.bindable import OwnPod
from scheduler_extender.leader.address import Address, Endpoint
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_extender.leader.replicas import NAMESPACE, SLICE
from topology.kubeapi.apiserver import ApiServer, ConflictError


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    with FakeApiServer() as found:
        yield found


@pytest.fixture
def endpoints(fake: FakeApiServer, tmp_path: Path) -> Iterator[list[Endpoint]]:
    """Those of three replicas, at 10.0.0.0, 10.0.0.1 and 10.0.0.2."""
    api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
    yield [
        Endpoint(api, OwnPod(NAMESPACE, f"pod-{i}"), Address(f"10.0.0.{i}", 8888, "gpu-topology"))
        for i in range(3)
    ]
    api.close()


def named(fake: FakeApiServer) -> list[str]:
    (endpoint,) = fake.read(SLICE)["endpoints"]
    return list(endpoint["addresses"])


@pytest.mark.parametrize("exists", [True, False], ids=["slice exists", "no slice yet"])
def test_a_former_leader_that_wakes_up_leaves_the_service_to_the_new_one(
    fake: FakeApiServer, endpoints: list[Endpoint], *, exists: bool
) -> None:
    """It was paused after it had read the slice, and its clock stood still."""
    former, new, before = endpoints
    if exists:
        before.publish(lambda: True)

    def pause() -> bool:
        new.publish(lambda: True)
        return True

    with pytest.raises(ConflictError):
        former.publish(pause)
    assert named(fake) == ["10.0.0.1"]


def test_who_leads_no_more_when_the_slice_was_read_writes_nothing(
    fake: FakeApiServer, endpoints: list[Endpoint]
) -> None:
    former, new, _ = endpoints
    former.publish(lambda: False)
    assert fake.items(SLICE.rpartition("/")[0]) == []
    new.publish(lambda: True)
    former.publish(lambda: False)
    assert named(fake) == ["10.0.0.1"]
