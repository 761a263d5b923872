"""A bind under DRA is written for the claim by which it was decided."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.kube.binder import KubeBinder
from scheduler_extender.verbs import BindError
from scheduler_extender.verbs.assume import DecidedBind, assume, decide_again
from scheduler_extender.wire import BindingArgs
from tests.dranodes import NODE, DraWorld, claim, two_pairs
from tests.nodes import pod, record_of
from topology.core.devices import PodUid
from topology.kubeapi.apiserver import ApiServer, Query

ARGS = BindingArgs("a", "ns", "a", NODE)


class WatchOfPods:
    """Shows the pod with the names of these claims, one after the other, and then nothing more."""

    def __init__(self, world: DraWorld, *names: str) -> None:
        self.world, self.names, self.version_shown = world, list(names), 0

    def version(self, uid: PodUid, *, other_than: str, within: float) -> str | None:
        if not self.names:
            return None
        show(self.world, self.names.pop(0))
        self.version_shown += 1
        return str(self.version_shown)

    @contextmanager
    def writing(self, term: int) -> Iterator[None]:
        yield


class Api(ApiServer):
    """Notes what is written."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
        self.written.append(msgspec.json.decode(body))
        return b"{}"


def show(world: DraWorld, name: str, **constraints: str) -> None:
    """The watch on pods shows a pod that asks for two GPUs, and that has this claim."""
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}
    status = {"requestMappings": [mapping], "resourceClaimName": name}
    made: dict[str, Any] = {"extendedResourceClaimStatus": status} if name else {}
    manifest = pod(2, constraints or {"link": "nvlink"}, name="a", uid="a", **made)
    manifest["metadata"]["namespace"] = "ns"
    world.cluster.put_pod(record_of(manifest))


@pytest.mark.parametrize(
    ("shown", "version"),
    [(["second"], 1), ([""], 1), (["first", "second"], 2), (["second", "third"], 1)],
)
def test_it_waits_for_the_name_of_the_claim(shown: list[str], version: int) -> None:
    world, api = two_pairs(), Api()
    show(world, "")
    world.claims.apply(claim("second", 2, 3, pod="a"))
    bind(world, api, *shown)
    (written,) = api.written
    assert written["metadata"]["resourceVersion"] == str(version)


def test_a_claim_of_an_earlier_try_proves_nothing() -> None:
    """It is gone, and the watch on claims shows neither that nor the one that came after it."""
    world, api = two_pairs(), Api()
    show(world, "first")
    world.claims.apply(claim("first", 2, 3, pod="a"))
    with pytest.raises(BindError):
        bind(world, api, "second")
    assert api.written == []


def test_without_a_fence_it_is_not_written_for_a_claim_of_an_earlier_try_either() -> None:
    world, api = two_pairs(), Api()
    show(world, "second")
    world.claims.apply(claim("first", 2, 3, pod="a"))
    with pytest.raises(BindError):
        verbs.bind(world.cluster, KubeBinder(api, world.cluster), ARGS, lambda: "")
    assert api.written == []


def decided_by_an_earlier_claim(world: DraWorld) -> DecidedBind:
    """A pod that names its second claim is decided while only its first one is known."""
    show(world, "second")
    world.claims.apply(claim("first", 2, 3, pod="a"))
    waits = world.cluster.pod(PodUid("a"))
    assert waits is not None
    decided = assume(world.cluster, waits, NODE, lambda: "")
    assert decided is not None
    return decided


def test_a_claim_that_has_come_meanwhile_is_the_proof() -> None:
    """It has the same GPUs as the one of an earlier try, so nothing else has changed."""
    world = two_pairs()
    decided = decided_by_an_earlier_claim(world)
    world.claims.delete(claim("first"))
    world.claims.apply(claim("second", 2, 3, pod="a"))
    assert decide_again(world.cluster, decided).claims == {"second"}


def test_a_claim_that_has_come_beside_another_is_judged_with_it() -> None:
    """The one of an earlier try is not gone yet, and was all that was known at first."""
    world = two_pairs()
    decided = decided_by_an_earlier_claim(world)
    world.claims.apply(claim("second", 1, 0, pod="a"))
    with pytest.raises(BindError, match="has no set of 4 GPUs"):
        decide_again(world.cluster, decided)


def test_a_claim_that_has_gone_meanwhile_counts_no_more() -> None:
    """The one of an earlier try stood beside the pod's own when the bind was decided."""
    world = two_pairs()
    show(world, "second", **{"min-gpu-memory": "1Gi"})
    world.claims.apply(claim("first", 2, 3, pod="a"))
    world.claims.apply(claim("second", 1, 0, pod="a"))
    waits = world.cluster.pod(PodUid("a"))
    assert waits is not None
    decided = assume(world.cluster, waits, NODE, lambda: "")
    assert decided is not None
    assert decided.request.count == 4
    world.claims.delete(claim("first"))
    assert decide_again(world.cluster, decided).request.count == 2


def bind(world: DraWorld, api: Api, *shown: str) -> None:
    binder = KubeBinder(api, world.cluster, WatchOfPods(world, *shown))
    verbs.bind(world.cluster, binder, ARGS, lambda: "")
