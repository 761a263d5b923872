"""Whoever may list the pods of one namespace only learns nothing of the pods of others, whichever
command and form they ask. The records name those pods, and the caller's rights do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import yaml

from scheduler_extender.cli import main
from scheduler_extender.kube.sinks import NODES_PATH, RECORDS_PATH
from scheduler_extender.told.view import HIDDEN
from tests.commands import Done, asked
from tests.dranodes import claim, device, device_class, slice_of
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import bridged, pod
from topology import codec
from topology.core.devices import DeviceId, GpuResource, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, IdleAllocation, Report

GPU = "nvidia.com/gpu"
# Namespace, name, UID and container of a pod of others, the end of a device's ID, and a claim.
SECRETS = ("team-x", "secret-pod", "secret-uid", "secret-container", "::7", "secret-claim")
NAMED = ("whole", "shared", "claimed", "undrained")
VERBS = (("nodes",), *(("node", name) for name in NAMED), ("map",), ("waiting",), ("idle", "-A"))
DRA = "/apis/resource.k8s.io/v1"
FORMS = ("table", "wide", "json", "yaml", "name")


class Tenant:
    """Somebody who may list the pods of team-a alone."""

    def __init__(self, fake: FakeApiServer, folder: Path) -> None:
        self._fake = fake
        self._folder = folder
        self._kubeconfig = fake.write_kubeconfig(folder / "kubeconfig")
        fake.refuse(403, None, path="^/api/v1/pods")
        self._node(bridged(4, NodeName("whole")), ("", "", "", ""))
        shares = GpuResource(GPU, "mps", 8)
        self._node(replace(bridged(4, NodeName("shared")), resources=(shares,)), ("::7",) * 4)
        twice = bridged(2, NodeName("twice"))
        self._node(twice, ("", ""), ("secret-pod-2", twice.gpus[0].uuid))
        self._with_dra()
        fake.put("/api/v1/namespaces/team-a/pods", self._waits(4, "train"))
        fake.put("/api/v1/namespaces/team-a/pods", self._waits(2, "small"))

    def _with_dra(self) -> None:
        """Two nodes with DRA: claims of others have GPUs of one, and on the other one a pod of
        others still has what a device plugin gave it."""
        for name in ("claimed", "undrained"):
            node = bridged(4, NodeName(name))
            held = [("secret-pod-old", node.gpus[0].uuid)] if name == "undrained" else []
            self._node(node, (), *held, allocatable=frozenset())
            published = slice_of(name, *map(device, range(4)), name=name, pool=name)
            self._put("resourceslices", published)
        self._put("deviceclasses", device_class())
        for number, pods in enumerate(((), ("secret-pod-a",), ("secret-pod-b", "secret-pod-c"))):
            held_by = claim(f"secret-claim-{number}", number, pods=pods, pool="claimed")
            self._put("namespaces/team-x/resourceclaims", held_by, namespace="team-x")

    def _put(self, where: str, manifest: msgspec.Raw, **metadata: str) -> None:
        obj = msgspec.json.decode(manifest)
        obj["metadata"] |= metadata
        self._fake.put(f"{DRA}/{where}", obj)

    @staticmethod
    def _waits(count: int, name: str) -> dict[str, object]:
        manifest = pod(count, {"link": "nvlink"}, name=name, uid=name)
        manifest["metadata"]["namespace"] = "team-a"
        return manifest

    def _node(
        self,
        node: NodeTopology,
        ends: tuple[str, ...],
        *more: tuple[str, str],
        allocatable: frozenset[DeviceId] | None = None,
    ) -> None:
        """A node whose GPUs pods of others hold, and do not use; each has a device whose ID ends
        so. ``more`` are pods and the devices that they are said to hold besides."""
        now = datetime.now(UTC)
        given = [
            (f"secret-pod-{node.name}-{i}", f"{gpu.uuid}{end}")
            for i, (gpu, end) in enumerate(zip(node.gpus, ends, strict=False))
        ]
        held = tuple(
            Allocation(
                PodUid(f"secret-uid-{name}"), "team-x", name, "secret-container", GPU,
                (DeviceId(device),),
            )
            for name, device in (*given, *more)
        )  # fmt: skip
        since = (now - timedelta(hours=3)).isoformat()
        idle = tuple(IdleAllocation(a.pod_uid, a.container, GPU, since) for a in held)
        report = Report("boot", 1, allocatable, held, idle=idle, observed_at=now.isoformat())
        self._fake.put(RECORDS_PATH, codec.encode(node, report))
        shares = sum(served.replicas for served in node.resources) or 1
        amounts = {GPU: str(len(node.gpus) * shares)} if allocatable is None else {}
        status = {"allocatable": amounts}
        self._fake.put(NODES_PATH, {"metadata": {"name": node.name}, "status": status})

    def asks(self, *words: object) -> Done:
        return asked(main, *words, "-n", "team-a", "--kubeconfig", self._kubeconfig)

    def asks_without_namespace(self, *words: object) -> Done:
        """The context names the namespace."""
        config = json.loads(self._kubeconfig.read_text())
        config["contexts"][0]["context"]["namespace"] = "team-a"
        path = self._folder / "named"
        path.write_text(json.dumps(config))
        return asked(main, *words, "--kubeconfig", path)


@pytest.fixture(scope="module")
def tenant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenant]:
    with FakeApiServer() as fake:
        yield Tenant(fake, tmp_path_factory.mktemp("tenant"))


def tells_nothing(done: Done) -> None:
    assert done.returncode in (0, 1), done.stderr
    for secret in SECRETS:
        assert secret not in done.stdout
        assert secret not in done.stderr


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_form_of_an_answer_tells_of_others(
    verb: tuple[str, ...], form: str, tenant: Tenant
) -> None:
    ask = tenant.asks_without_namespace if "-A" in verb else tenant.asks
    tells_nothing(ask(*verb, "-o", form))


@pytest.mark.parametrize("form", ["text", "json"])
def test_why_tells_nothing_of_others(form: str, tenant: Tenant) -> None:
    tells_nothing(tenant.asks("why", "train", "-o", form))
    done = tenant.asks("why", "small", "-o", form)
    tells_nothing(done)
    assert HIDDEN in done.stdout


@pytest.mark.parametrize("form", ["table", "json"])
def test_check_tells_nothing_of_others(form: str, tenant: Tenant, tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump({"kind": "Pod", **pod(2, {"link": "nvlink"}, name="mine")}))
    done = tenant.asks("check", path, "--output", form)
    tells_nothing(done)
    assert HIDDEN in " ".join(done.stdout.split())


def test_what_is_left_of_a_pod_of_others_is_which_gpus_it_holds(tenant: Tenant) -> None:
    done = tenant.asks_without_namespace("idle", "-A", "-o", "json")
    rows = [row for row in json.loads(done.stdout)["idle"] if row["node"] == "whole"]
    assert [(row["pod"], row["gpus"]) for row in rows] == [(HIDDEN, [gpu]) for gpu in range(4)]
    for row in rows:
        assert (row["containers"], row["deviceIds"]) == ([], [])


def test_the_pods_on_a_shared_gpu_are_counted_and_not_named(tenant: Tenant, tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump({"kind": "Pod", **pod(1, name="mine")}))
    done = tenant.asks("check", path, "--output", "json")
    (shared,) = (n for n in json.loads(done.stdout)["nodes"] if n["node"] == "shared")
    assert [each["pods"] for each in shared["sharedGpus"]] == [[HIDDEN]] * 4
