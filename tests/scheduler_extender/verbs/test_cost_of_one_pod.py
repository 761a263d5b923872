"""What one pod costs on its way through the watch, filter, prioritize, bind and a report."""

from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.exclusive import exclusive_of
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.ledger import ledger
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import pod, switched
from topology.core.devices import DeviceId, PodUid
from topology.core.memo import forget
from topology.core.report import Allocation, Report


def test_a_request_is_read_once_and_a_ledger_made_for_each_state_of_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = {"read": 0, "ledger": 0}

    def counted(what: str, function: Any) -> Any:
        def count(*args: Any, **more: Any) -> Any:
            calls[what] += 1
            return function(*args, **more)

        return count

    ours = "scheduler_extender."
    monkeypatch.setattr(f"{ours}annotations.exclusive_of", counted("read", exclusive_of))
    monkeypatch.setattr(f"{ours}state.node.nodeinfo.ledger", counted("ledger", ledger))
    forget()
    cluster, node = Cache(lambda: 0.0), switched()
    cluster.put_record(node, Report("boot", 1))
    calls["ledger"] = 0
    sink, binder, names = PodSink(cluster), FileBinder(cluster), [node.name]

    def tell(**more: Any) -> None:
        found = pod(2, {"link": "nvlink"}, uid="a", **more)
        sink.apply(msgspec.Raw(msgspec.json.encode(found)))

    tell()
    asking = msgspec.convert(pod(2, {"link": "nvlink"}, uid="a"), Pod)
    assert verbs.filter_nodes(cluster, asking, names).node_names == names
    assert verbs.prioritize(cluster, asking, names)
    args = BindingArgs("train", "default", "a", node.name)
    verbs.bind(cluster, binder, args, lambda: "2026-01-01T00:00:00Z")
    tell(node=node.name)
    tell(node=node.name, phase="Running", startTime="2026-01-01T00:00:00Z")
    ids = (DeviceId("GPU-0"), DeviceId("GPU-1"))
    shown = Allocation(PodUid("a"), "default", "train", "main", "nvidia.com/gpu", ids)
    cluster.put_record(node, Report("boot", 2, allocations=(shown,)))
    # Before the report, as it is held against what was foreseen, and after it.
    assert calls == {"read": 1, "ledger": 2}
