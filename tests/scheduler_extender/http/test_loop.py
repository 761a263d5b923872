"""The event loop: it answers what is remembered, waits for no lock, works out next to nothing."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastapi.encoders
import fastapi.routing
import httpx
import pytest

from scheduler_extender.limits import AT_ONCE_BODY, AT_ONCE_CONTAINERS, AT_ONCE_STATES
from scheduler_extender.state.answers.decision import Decision, Settings, decide
from scheduler_extender.state.answers.remembered import Remembered
from scheduler_extender.state.asking import enquiry
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import pod_record
from scheduler_extender.wire import pod_decoder
from tests.nodes import container, pod, switched
from tests.scheduler_extender.serving import Clock, Running, running
from tests.waiting import PATIENCE
from topology.core.devices import NodeName
from topology.core.report import Health, Report
from topology.core.requests import GpuRequest
from topology.machines import machine

NODES = tuple(switched(4, f"node-{i}") for i in range(3))
NAMES = [node.name for node in NODES]
PAIR = pod(2, {"link": "nvlink"})


class Watched(Cluster):
    """Notes in which thread answers are worked out and given."""

    def __init__(self) -> None:
        super().__init__(Clock(), Settings(stale_after=None))
        self.worked_out: list[str] = []
        self.given: list[str] = []
        self.cache.remembered = _Noted(self, self._lock)


class _Noted(Remembered):
    def __init__(self, cluster: Watched, lock: threading.RLock) -> None:
        super().__init__(lock)
        self._cluster = cluster

    def answers(self, *args: Any, **how: Any) -> Any:
        found = super().answers(*args, **how)
        self._cluster.given.append(threading.current_thread().name)
        return found

    def remember(self, request: GpuRequest, state: int, decision: Decision) -> None:
        self._cluster.worked_out.append(threading.current_thread().name)
        super().remember(request, state, decision)


def _worker(name: str) -> bool:
    return name.startswith("AnyIO")


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_what_is_remembered_is_answered_on_the_loop_and_the_rest_in_threads(verb: str) -> None:
    nodes = [machine("hgx-h100-8").topology(f"big-{i}") for i in range(AT_ONCE_STATES + 1)]
    names = [node.name for node in nodes]
    cluster = Watched()
    with running(*nodes, cluster=cluster) as service:
        for i, node in enumerate(nodes):
            health = tuple(Health(gpu.uuid, False, "Xid79") for gpu in node.gpus[:i])
            cluster.feed.put_report(node.name, Report("boot", 2, health=health))
        ask = getattr(service, verb)
        first = ask(PAIR, *names)
        assert len(cluster.worked_out) == len(nodes)
        assert all(map(_worker, cluster.worked_out))
        cluster.worked_out.clear()
        cluster.given.clear()
        assert ask(PAIR, *names) == first
        assert not cluster.worked_out
        assert cluster.given
        assert not any(map(_worker, cluster.given))


def test_one_node_in_a_new_state_is_worked_out_on_the_loop() -> None:
    cluster = Watched()
    with running(*NODES, cluster=cluster) as service:
        service.filter(PAIR, *NAMES)
        cluster.worked_out.clear()
        health = (Health(NODES[0].gpus[0].uuid, False, "Xid79"),)
        cluster.feed.put_report(NodeName(NAMES[0]), Report("boot", 2, health=health))
        service.filter(PAIR, *NAMES)
        assert len(cluster.worked_out) == 1
        assert not any(map(_worker, cluster.worked_out))


def test_what_takes_longer_is_gone_on_with_in_a_thread() -> None:
    cluster = Watched()
    with running(*NODES, cluster=cluster) as service:
        before = cluster.cache.clock
        cluster.cache.clock = lambda: (
            before() if _worker(threading.current_thread().name) else next(ticks)
        )
        ticks = itertools.count(
            before() + 1
        )  # on the loop each look at the clock is a second later
        assert service.filter(PAIR, *NAMES)["NodeNames"] == NAMES
        assert cluster.worked_out
        assert all(map(_worker, cluster.worked_out))


def test_preempt_is_worked_out_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def noted(*args: Any) -> Decision:
        threads.append(threading.current_thread().name)
        return decide(*args)

    monkeypatch.setattr(enquiry, "decide", noted)
    with running(*NODES) as service:
        victims = {NAMES[0]: {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}
        body = {"Pod": PAIR, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
        answer = service.http.post("/scheduler/preempt", json=body)
        assert answer.json()["NodeNameToMetaVictims"].keys() == {NAMES[0]}
        assert threads
        assert all(map(_worker, threads))


def test_a_large_body_is_decoded_in_a_thread() -> None:
    cluster = Watched()
    with running(*NODES, cluster=cluster) as service:
        names = [*NAMES, *("x" * 250 + str(i) for i in range(AT_ONCE_BODY // 250))]
        for _ in range(2):
            assert service.filter(PAIR, *names)["NodeNames"] == NAMES
        assert cluster.given
        assert all(map(_worker, cluster.given))


def test_a_pod_of_many_containers_is_read_in_a_thread() -> None:
    cluster = Watched()
    init = [container(f"i{n}", 1) for n in range(AT_ONCE_CONTAINERS)]
    many = pod(1, {"link": "nvlink"}, init=init)
    with running(*NODES, cluster=cluster) as service:
        for _ in range(2):
            assert service.filter(many, *NAMES)["NodeNames"] == NAMES
            assert service.prioritize(many, *NAMES)
        assert cluster.given
        assert all(map(_worker, cluster.given))


def _post(service: Running, path: str, body: Any) -> httpx.Response:
    url = f"http://127.0.0.1:{service.ports[0]}{path}"
    return httpx.post(url, content=json.dumps(body), timeout=PATIENCE, trust_env=False)


def test_the_loop_waits_for_no_lock() -> None:
    ask = {"Pod": PAIR, "Nodes": None, "NodeNames": NAMES}
    report = {"node": NAMES[0], "status": {"bootID": "boot", "sequence": 2, "allocations": []}}
    with running(*NODES) as service, ThreadPoolExecutor(4) as pool:
        service.filter(PAIR, *NAMES)
        with service.cluster.locked():
            waiting = [
                pool.submit(_post, service, "/scheduler/filter", ask),
                pool.submit(_post, service, "/scheduler/prioritize", ask),
                pool.submit(service.admin.post, "/v1/reports", json=report),
            ]
            for _ in range(3):
                assert service.http.get("/healthz").status_code == 200
                assert service.http.get("/readyz").status_code == 200
            assert not any(one.done() for one in waiting)
        assert [one.result().status_code for one in waiting] == [200, 200, 204]


LOADED = """
import encodings.idna, http.client, json, sys
from scheduler_extender.serving import in_memory, in_thread
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.answers.decision import Settings
from tests.nodes import pod, switched
from topology.core.report import Report

cluster = Cluster(lambda: 0.0, Settings(stale_after=None))
cluster.feed.put_record(switched(4, "a"), Report("boot", 1))
service, _ = in_memory(cluster)
with in_thread(service) as servers:
    before = set(sys.modules)
    client = http.client.HTTPConnection("127.0.0.1", servers.ports[0])
    body = {"Pod": pod(2, {"link": "nvlink"}), "NodeNames": ["a"]}
    client.request("POST", "/scheduler/filter", json.dumps(body))
    assert json.loads(client.getresponse().read())["NodeNames"] == ["a"]
    print(sorted(set(sys.modules) - before))
"""


def test_the_first_verb_loads_no_module() -> None:
    """A library that is loaded late is loaded on the loop, which answers nobody meanwhile."""
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/nodes/node-0", "/v1/explain/default/train-0"])
def test_an_answer_for_people_becomes_json_in_a_thread(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 5,000 nodes the loop stood still for 0.15 s while FastAPI went through their rows."""
    gone_through: list[str] = []
    encoder = fastapi.encoders.jsonable_encoder

    def watched(value: Any, *args: Any, **named: Any) -> Any:
        gone_through.append(threading.current_thread().name)
        return encoder(value, *args, **named)

    monkeypatch.setattr(fastapi.routing, "jsonable_encoder", watched)
    with running(*NODES) as service:
        waiting = pod_record(pod_decoder.decode(json.dumps(PAIR)), ("nvidia.com/gpu",))
        assert waiting is not None
        service.cluster.feed.put_pod(waiting)
        where = path.replace("default/train-0", f"{waiting.namespace}/{waiting.name}")
        answer = service.admin.get(where)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert "node-0" in answer.text
    assert all(map(_worker, gone_through)), gone_through
