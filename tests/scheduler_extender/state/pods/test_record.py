"""A pod that kube-scheduler sends is read once: where our watch has shown the same state of it."""

from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import MANAGED
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import (
    PodRecord,
    counting_record,
    pod_record,
    requesting_record,
)
from scheduler_extender.verbs import filter_nodes, prioritize
from scheduler_extender.wire import Pod
from tests.nodes import bridged, pcie, pod, switched
from topology.core.devices import PodUid
from topology.core.report import Report

NODES = ["bridged", "pcie", "switched", "unknown"]


def sent(version: str, count: int | str | None = 2, **more: Any) -> Pod:
    """A pod of this resourceVersion, as kube-scheduler sends it."""
    manifest = pod(count, **more)
    manifest["metadata"] |= {"resourceVersion": version}
    return msgspec.convert(manifest, Pod)


def cluster(*known: Pod) -> Cache:
    """A cluster of three nodes in which our watch has shown these pods."""
    found = Cache(lambda: 0.0)
    for node in (bridged(), pcie(), switched()):
        found.put_record(node, Report("boot", 1))
    for each in known:
        record = counting_record(each, MANAGED)
        assert record is not None
        found.put_pod(record)
    return found


def asked(of: Cache, wants: Pod) -> PodRecord | None:
    return requesting_record(wants, MANAGED, of.snapshot().waiting)


def test_a_state_that_the_watch_has_shown_is_not_read_again() -> None:
    of = cluster(sent("7"))
    assert asked(of, sent("7")) is of.pod(PodUid("uid-1"))


@pytest.mark.parametrize(
    ("known", "wants"),
    [
        pytest.param(sent("7"), sent("8", 4), id="newer"),
        pytest.param(sent("8"), sent("7", 4), id="older"),
        pytest.param(sent("7"), sent("", 4), id="it names none"),
        pytest.param(sent(""), sent("", 4), id="nobody names one"),
        pytest.param(sent("7"), sent("7", 4, uid="uid-2"), id="another pod"),
        pytest.param(sent("7"), sent("7", nominatedNodeName="pcie"), id="nominated since"),
        pytest.param(sent("7", nominatedNodeName="pcie"), sent("7"), id="no more nominated"),
        pytest.param(sent("7", node="pcie"), sent("7", 4), id="bound, to us"),
    ],
)
def test_any_other_state_is_read_anew(known: Pod, wants: Pod) -> None:
    read = requesting_record(wants, MANAGED)
    assert asked(cluster(known), wants) == read != counting_record(known, MANAGED)


def test_a_cluster_file_is_no_watch() -> None:
    """It may hold a pod otherwise than kube-scheduler has it."""
    of = cluster()
    record = pod_record(sent("7"), MANAGED, trusted=True)
    assert record is not None
    of.put_pod(record)
    again = asked(of, sent("7"))
    assert again == record
    assert again is not of.pod(record.uid)


def test_a_pod_that_differs_only_in_its_version_changes_nothing_else() -> None:
    of = cluster(sent("7"))
    shown = of.version
    record = counting_record(sent("8"), MANAGED)
    assert record is not None
    of.put_pod(record)
    assert of.version == shown
    assert asked(of, sent("8")) is record
    assert asked(of, sent("7")) == record


@pytest.mark.parametrize(
    "wants",
    [
        pytest.param(sent("7"), id="plain"),
        pytest.param(sent("7", annotations={"link": "nvlink"}), id="requires"),
        pytest.param(sent("7", annotations={"link": "no such"}), id="malformed"),
        pytest.param(sent("7", annotations={"numa": "same"}), id="numa"),
        pytest.param(sent("7", 16), id="too many"),
        pytest.param(sent("7", nominatedNodeName="pcie"), id="nominated"),
        pytest.param(sent("7", annotations={"group": "g", "group-domain": "zone"}), id="group"),
    ],
)
def test_the_answers_are_the_same(wants: Pod) -> None:
    """Those for the record that the watch has read, and for the pod that is sent without one."""
    nameless = msgspec.structs.replace(
        wants, metadata=msgspec.structs.replace(wants.metadata, resource_version="")
    )
    known, anew = cluster(wants), cluster(wants)
    assert asked(known, wants) is known.pod(PodUid("uid-1"))
    assert asked(anew, nameless) is not anew.pod(PodUid("uid-1"))
    assert filter_nodes(known, wants, NODES) == filter_nodes(anew, nameless, NODES)
    assert prioritize(known, wants, NODES) == prioritize(anew, nameless, NODES)
