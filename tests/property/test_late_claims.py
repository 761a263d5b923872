"""A pod under DRA is bound to the GPUs that it requires, however late each watch is: claims are
written one after the other, deleted and made anew, and GPUs come and go in ResourceSlices."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_extender import verbs
from scheduler_extender.annotations import MANAGED
from scheduler_extender.kube.binder import KubeBinder
from scheduler_extender.state.pods.record import requesting_record
from scheduler_extender.verbs import BindError
from scheduler_extender.wire import BindingArgs, Pod
from tests.dranodes import (
    DRIVER,
    NODE,
    Json,
    a_slice,
    asking,
    claim,
    device,
    exactly,
    raw,
    two_pairs,
)
from tests.nodes import pod
from topology.core.devices import PodUid
from topology.kubeapi.apiserver import ApiError, ApiServer, ConflictError, Query

PAIRS = {0, 1}, {2, 3}
NIC = "nics.example.com"


class Played(ApiServer):
    """An API server, a kube-scheduler, and an extender whose watches are late."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.world = rng, two_pairs()
        self.changes: dict[str, list[Json]] = {"claims": [], "slices": [], "pods": []}
        self.claims: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.bound: set[str] = set()
        self.published = [3, 1, 0, 2]
        self.number, self.written, self.refuses = 0, False, False
        self.versions: dict[str, str] = {}  # of pods, as the watch has shown them
        self.binder = KubeBinder(self, self.world.cluster, self)

    def happens(self) -> None:
        """Something happens."""
        self.number += 1
        some = (self.make, self.publish, self.end, self.show)
        self.rng.choices((*some, self.schedule), (3, 1, 4, 2, 10))[0]()

    # The API server.

    def put(self, kind: str, obj: Json) -> None:
        known = {"claims": self.claims, "pods": self.pods}.get(kind, {})
        known[obj["metadata"]["name"]] = obj
        obj["metadata"]["resourceVersion"] = str(self.number)
        self.changes[kind].append(deepcopy(obj))

    def drop_claim(self, name: str) -> None:
        self.changes["claims"].append({**self.claims.pop(name), "gone": True})

    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
        bound = msgspec.json.decode(body)["metadata"]
        if self.pods[bound["name"]]["metadata"]["resourceVersion"] != bound["resourceVersion"]:
            raise ConflictError(409, "Conflict", "the object has been modified")
        self.refuses = self.rng.random() < 0.3
        if self.refuses:
            raise ApiError(403, "Forbidden", "by a webhook")
        self.written = True
        return b"{}"

    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes:
        return msgspec.json.encode(self.pods[path.rpartition("/")[2]])

    # The extender's watches, and its fence.

    def show(self, *kinds: str) -> None:
        """Each watch shows some of its news, or all."""
        for kind in kinds or self.changes:
            changes, world = self.changes[kind], self.world
            for obj in changes[: len(changes) if kinds else self.rng.choice((0, 1, 9, 9))]:
                changes.remove(obj)
                if kind != "pods":
                    sink = getattr(world, kind)
                    (sink.delete if obj.pop("gone", False) else sink.apply)(raw(obj))
                elif obj.pop("gone", False):
                    world.cluster.drop_pod(PodUid(obj["metadata"]["uid"]), self.number)
                else:
                    record = requesting_record(msgspec.convert(obj, Pod), MANAGED)
                    assert record is not None
                    world.cluster.put_pod(record)
                    self.versions[record.name] = obj["metadata"]["resourceVersion"]

    def version(self, uid: PodUid, *, other_than: str, within: float) -> str | None:
        if self.versions.get(uid, "") == other_than:
            self.show("pods")
        shown = self.versions.get(uid, "")
        return None if shown == other_than else shown

    @contextmanager
    def writing(self, term: int) -> Iterator[None]:
        yield

    # What people and drivers do.

    def make(self) -> None:
        """A pod that asks for a number, or has claims of its own, or both."""
        name, count = f"p{self.number}", self.rng.choice((0, 1, 2, 2))
        own = [f"{name}-{n}" for n in range(self.rng.choice((0, 0, 1, 2) if count else (1, 2, 2)))]
        manifest: Json = pod(count, {"link": "nvlink"}, name=name, uid=name)
        manifest["metadata"]["namespace"] = "ns"
        manifest["spec"]["resourceClaims"] = [{"name": n, "resourceClaimName": n} for n in own]
        for each in own:
            wanted = exactly(self.rng.choice((0, 1, 1, 2)))  # of no GPU, but a NIC
            self.put("claims", msgspec.json.decode(asking(each, wanted)))
        self.put("pods", manifest)

    def publish(self) -> None:
        self.published = self.rng.sample(range(4), self.rng.choice((3, 4, 4)))
        devices = map(device, self.published)
        self.put("slices", msgspec.json.decode(a_slice(*devices, generation=self.number + 1)))

    def end(self) -> None:
        """A pod that runs is deleted, with its claims."""
        for name in sorted(self.bound)[:1]:
            self.bound.discard(name)
            for each in [each for each in self.claims if each.startswith(f"{name}-")]:
                self.drop_claim(each)
            self.changes["pods"].append({**self.pods.pop(name), "gone": True})

    # What kube-scheduler does.

    def schedule(self) -> None:
        """Allocate what a pod lacks, write it claim by claim, and have the pod bound."""
        waiting = sorted(self.pods.keys() - self.bound)
        if not waiting:
            return
        manifest = self.pods[self.rng.choice(waiting)]
        name, made = manifest["metadata"]["name"], f"made-{self.number}"
        count = int(manifest["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        own = [each["name"] for each in manifest["spec"]["resourceClaims"]]
        wanted = {each: self.asked(each) for each in own} | (
            {f"{name}-{made}": count} if count else {}
        )
        taken = {gpu for each in self.claims.values() for gpu in gpus_of(each)}
        free = [gpu for gpu in self.published if gpu not in taken]
        lacking = {each: n for each, n in wanted.items() if not gpus_of(self.claims.get(each, {}))}
        if len(free) < sum(lacking.values()):
            return
        for each, gpus in wanted.items():
            mine = gpus_of(self.claims.get(each, {})) or [free.pop(0) for _ in range(gpus)]
            of: dict[str, Any] = {} if gpus else {"driver": NIC, "pool": "fabric"}
            now = msgspec.json.decode(claim(each, *(mine or [0]), pod=name, **of))
            self.put("claims", {**self.claims.get(each, {}), **now})
            if each not in own:
                mapping = {"resourceName": "nvidia.com/gpu"}
                answer = {"requestMappings": [mapping], "resourceClaimName": each}
                manifest["status"]["extendedResourceClaimStatus"] = answer
                self.put("pods", manifest)
        self.show()
        self.bind(name, {gpu for each in wanted for gpu in gpus_of(self.claims[each])})
        if name not in self.bound:
            for each in wanted.keys() - {*own}:
                self.drop_claim(each)
            if own and self.rng.random() < 0.5:
                for each in own:
                    self.put("claims", {**self.claims[each], "status": {}})
                self.show("claims")  # of one that was allocated before nobody sees that it is gone

    def asked(self, name: str) -> int:
        (request,) = self.claims[name]["spec"]["devices"]["requests"]
        return int(request["exactly"]["count"])

    def bind(self, name: str, gpus: set[int]) -> None:
        args, message = BindingArgs(name, "ns", name, NODE), ""
        self.written = self.refuses = False
        all_shown = not (self.changes["claims"] or self.changes["slices"])
        try:
            verbs.bind(self.world.cluster, self.binder, args, lambda: "")
        except BindError as error:
            message = str(error)
        good = len(gpus) == 1 or gpus in PAIRS
        assert good or not self.written, (name, gpus)
        if all_shown and gpus and gpus <= {*self.published}:
            assert (self.written or self.refuses) == good, (name, gpus, message)
        if self.written:
            self.bound.add(name)
            self.pods[name]["spec"]["nodeName"] = NODE
            self.put("pods", self.pods[name])


def gpus_of(claim: Json) -> list[int]:
    """The GPUs that a claim has."""
    given: Any = claim.get("status", {}).get("allocation", {}).get("devices", {})
    mine = (each for each in given.get("results", ()) if each["driver"] == DRIVER)
    return [int(each["device"].removeprefix("gpu-")) for each in mine]


@settings(max_examples=50)
@given(rng=st.randoms(use_true_random=False))
def test_a_pod_is_bound_to_what_it_requires(rng: Random) -> None:
    played = Played(rng)
    for _ in range(40):
        played.happens()
