"""A node whose kubelet refuses everything, a controller that makes a new pod for each failed one.

The extender answers over HTTP and binds through the fake API server. Time is the test's own; the
scheduler here does as kube-scheduler does: it tries a pod that is new or that was woken.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from scheduler_extender.annotations import RESUME, WAKE
from scheduler_extender.framework.rules.backoff import refusing
from scheduler_extender.kube.events import REFUSED, EventWriter
from scheduler_extender.kube.sinks import NodeSink, PodSink
from scheduler_extender.kube.waker import Waker
from tests.nodes import pod, switched
from tests.scheduler_extender.conftest import Kube, raw
from tests.scheduler_extender.serving import running

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
NODE = "switched"
ERROR = "UnexpectedAdmissionError"
BEGAN = 1_790_000_000
FIVE_MINUTES = 300


class World:
    """API server, controller, scheduler, kubelet and extender, all on one virtual clock."""

    def __init__(self, kube: Kube, replicas: int) -> None:
        self.fake = kube.fake
        self.replicas = replicas
        self.now = 0
        self.sick = True
        self.tried: dict[str, str] = {}
        self.made = 0
        self.fake.put(NODES, {"metadata": {"name": NODE}})

    @contextmanager
    def extender(self, folder: Path) -> Iterator[None]:
        """An extender that starts now, and lists what there is."""
        kube = Kube(self.fake, folder)
        kube.clock.now = 7.0 + self.now  # each process counts from a moment of its own
        with running(
            switched(8), binder=kube.binder, cluster=kube.cluster, clock=kube.clock
        ) as service:
            self.kube, self.service = kube, service
            self.pods = PodSink(kube.cluster, lambda: BEGAN + self.now)
            self.events = EventWriter(kube.api, clock=kube.clock)
            service.service.metrics.watch(kube.cluster)
            kube.cluster.on_refusal.append(self.events.note_refusal)
            self.waker = Waker(kube.cluster, kube.api)
            self.pods.replace([raw(p) for p in self.fake.items(PODS)], "1000")
            NodeSink(kube.cluster).replace([raw(n) for n in self.fake.items(NODES)], "1000")
            try:
                yield
            finally:
                kube.api.close()

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self._control()
            self._schedule()
            self._admit()
            self.now += 1
            self.kube.clock.now += 1
            self.waker.round(float(self.now))
            self.events.round()

    def _control(self) -> None:
        alive = [p for p in self.fake.items(PODS) if p["status"]["phase"] != "Failed"]
        for _ in range(self.replicas - len(alive)):
            self.made += 1
            self._write(pod(1, name=f"p{self.made}", uid=f"uid-{self.made}"))

    def _schedule(self) -> None:
        for found in self.fake.items(PODS):
            uid = found["metadata"]["uid"]
            woken = found["metadata"].get("annotations", {}).get(WAKE, "")
            if "nodeName" in found["spec"] or self.tried.get(uid) == woken:
                continue
            self.tried[uid] = woken
            self.pods.apply(raw(found))
            status = self.service.filter(found, NODE)
            if status["NodeNames"] == [NODE] and not self.service.bind(found, NODE):
                self.pods.apply(raw(self.fake.read(f"{PODS}/{found['metadata']['name']}")))
                continue
            self._write(found, conditions=[UNSCHEDULABLE])

    def _admit(self) -> None:
        """The kubelet's turn."""
        for found in self.fake.items(PODS):
            if "nodeName" in found["spec"] and "startTime" not in found["status"]:
                status = {"startTime": datetime.fromtimestamp(BEGAN + self.now, UTC).isoformat()}
                if self.sick:
                    message = "Pod was rejected: Allocate failed, which is unexpected"
                    status |= {"phase": "Failed", "reason": ERROR, "message": message}
                else:
                    status |= {"phase": "Running"}
                self._write(found, **status)

    def _write(self, manifest: dict[str, Any], **status: Any) -> None:
        changed = {**manifest, "status": {**manifest["status"], **status}}
        self.pods.apply(raw(self.fake.put(PODS, changed)))

    @property
    def binds(self) -> int:
        return sum(r.method == "POST" and r.path.endswith("/binding") for r in self.fake.requests)

    def phases(self, phase: str) -> int:
        return sum(p["status"]["phase"] == phase for p in self.fake.items(PODS))


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


@pytest.fixture
def world(kube: Kube) -> World:
    return World(kube, replicas=1)


def test_a_controller_cannot_run_away(world: World, tmp_path: Path) -> None:
    with world.extender(tmp_path), capture_logs() as logs:
        world.pass_time(FIVE_MINUTES)
        assert 3 <= world.binds <= 5
        assert world.phases("Failed") == world.binds
        refused = [entry for entry in logs if entry.get("reason") == ERROR]
        assert len(refused) == world.binds
        metrics = world.service.service.metrics.registry
        counted = metrics.get_sample_value("gpu_topology_refusals_total", {"reason": ERROR})
        assert counted == world.binds
        row = world.service.admin.get(f"/v1/nodes/{NODE}").json()["refusals"][0]
        assert (row["request"], row["inARow"], row["takesNoPods"]) == ("1 GPU", world.binds, True)
        assert 0 < row["triedAgainInSeconds"] <= 240
        asked = world.service.filter(pod(1, uid="another"), NODE)
        assert asked["FailedAndUnresolvableNodes"] == {NODE: refusing(ERROR, alike=True).message}
    events = world.fake.items("/api/v1/namespaces/default/events")
    assert {event["reason"] for event in events} == {REFUSED}
    of_nodes = [event for event in events if event["involvedObject"]["kind"] == "Node"]
    assert {event["involvedObject"]["name"] for event in of_nodes} == {NODE}
    of_pods = [event["message"] for event in events if event not in of_nodes]
    assert of_pods
    assert all("no known hazard" in message for message in of_pods)


def test_people_see_what_was_asked(world: World, tmp_path: Path) -> None:
    """A row for each kind of pods, and one for all where two kinds were refused."""
    world.replicas = 2
    with world.extender(tmp_path):
        world.pass_time(3)
        limits = {"nvidia.com/gpu": "1", "cpu": "2", "memory": "1Gi"}
        pinned = pod(None, containers=[{"name": "main", "resources": {"limits": limits}}])
        pinned["metadata"] |= {"name": "pinned", "uid": "pinned"}
        pinned["spec"]["nodeName"] = NODE
        world.fake.put(PODS, pinned)
        world.pass_time(3)
        rows = world.service.admin.get(f"/v1/nodes/{NODE}").json()["refusals"]
        assert [row["request"] for row in rows] == ["anything", "1 GPU", "1 GPU, 2 exclusive CPUs"]
        assert [row["takesNoPods"] for row in rows] == [True, True, True]


def test_an_operator_lets_pods_in_again(world: World, tmp_path: Path) -> None:
    with world.extender(tmp_path):
        world.pass_time(FIVE_MINUTES + 20)  # the next pause has begun
        world.sick, binds = False, world.binds
        world.pass_time(20)
        assert world.binds == binds
        at = datetime.fromtimestamp(BEGAN + world.now, UTC).isoformat()
        node = {"metadata": {"name": NODE, "annotations": {RESUME: at}}}
        NodeSink(world.kube.cluster).apply(raw(world.fake.put(NODES, node)))
        world.pass_time(5)
        assert world.phases("Running") == 1
    # And a new extender knows it from the Node.
    folder = tmp_path / "next"
    folder.mkdir()
    with world.extender(folder):
        assert not world.kube.cluster.node_info(
            sorted(world.kube.cluster.snapshot().by_name)[0]
        ).history.backoffs
