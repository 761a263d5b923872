"""The group of a pod, from each source, and the message where it cannot be read."""

from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.groupreference import Group, GroupReference, group_ref_of
from scheduler_extender.state.pods.record import manifest_of
from scheduler_extender.wire import Pod
from tests.nodes import pod, record_of

RACK = {"group-domain": "nvlink-domain"}
FOUR = {"group-size": "4"}
GANG = {"schedulingGroup": {"podGroupName": "train"}}


def manifest(
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    theirs: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
) -> dict[str, Any]:
    found = pod(2, annotations)
    found["metadata"]["annotations"] |= theirs or {}
    found["metadata"]["labels"] = labels or {}
    found["spec"] |= spec or {}
    return found


def member(*args: Any, **more: Any) -> GroupReference | None:
    return group_ref_of(msgspec.convert(manifest(*args, **more), Pod))


def refusal(*args: Any, **more: Any) -> str:
    found = parse(msgspec.convert(manifest(*args, **more), Pod))
    assert isinstance(found, Malformed)
    return found.reason


def test_our_annotations_name_a_group_that_is_no_gang() -> None:
    found = member({"group": "train", **FOUR, **RACK})
    assert found == GroupReference(Group("default", "train"), 4, "nvlink-domain")


JOB = {"batch.kubernetes.io/job-name": "j"}
JOBSET = {"jobset.sigs.k8s.io/jobset-name": "s"}
LWS = {"leaderworkerset.sigs.k8s.io/group-key": "k"}
KUEUE = {"kueue.x-k8s.io/pod-group-name": "q"}
COSCHEDULING = {"scheduling.x-k8s.io/pod-group": "c"}


@pytest.mark.parametrize(
    ("labels", "name", "gang"),
    [
        pytest.param(JOB, "job/j", False, id="Indexed Job"),
        pytest.param({**JOB, **JOBSET}, "jobset/s", False, id="JobSet before its Jobs"),
        pytest.param(LWS, "leaderworkerset/k", False, id="LeaderWorkerSet"),
        pytest.param({**JOB, **KUEUE}, "kueue/q", False, id="Kueue's pod group"),
        pytest.param({**JOB, **COSCHEDULING}, "coscheduling/c", True, id="coscheduling"),
    ],
)
def test_a_group_that_people_have_made_already(
    labels: dict[str, str], name: str, gang: bool
) -> None:
    found = member({**RACK, **FOUR}, labels)
    assert found == GroupReference(Group("default", name), 4, "nvlink-domain", gang, gang)


def test_kube_schedulers_own_group_stands_before_labels() -> None:
    found = member({**RACK, **FOUR}, {**JOB, **COSCHEDULING}, spec=GANG)
    assert found is not None
    assert found.group.name == "podgroup/train"


@pytest.mark.parametrize(
    ("labels", "annotation"),
    [
        pytest.param(KUEUE, "kueue.x-k8s.io/pod-group-total-count", id="Kueue"),
        pytest.param(LWS, "leaderworkerset.sigs.k8s.io/size", id="LeaderWorkerSet"),
    ],
)
def test_the_size_that_another_program_wrote_counts(
    labels: dict[str, str], annotation: str
) -> None:
    found = member(RACK, labels, {annotation: "6"})
    assert found is not None
    assert found.size == 6
    ours = member({**RACK, **FOUR}, labels, {annotation: "6"})
    assert ours is not None
    assert ours.size == 4


@pytest.mark.parametrize("labels", [JOB, JOBSET, LWS, KUEUE, {}])
def test_pods_without_annotations_of_ours_are_in_no_group(labels: dict[str, str]) -> None:
    assert member({"link": "nvlink"}, labels) is None


@pytest.mark.parametrize(
    ("labels", "spec"),
    [pytest.param(COSCHEDULING, {}, id="label"), pytest.param({}, GANG, id="schedulingGroup")],
)
def test_a_gang_is_one_without_annotations_of_ours(
    labels: dict[str, str], spec: dict[str, Any]
) -> None:
    found = member({}, labels, spec=spec)
    assert found is not None
    assert (found.gang, found.size, found.peers_counted) == (True, None, False)
    counted = member(FOUR, labels, spec=spec)
    assert counted is not None
    assert (counted.size, counted.peers_counted) == (4, True)


def test_a_part_of_a_gang_does_not_count_the_whole() -> None:
    found = member({"group": "part", **FOUR, **RACK}, spec=GANG)
    assert found is not None
    assert (found.group.name, found.gang, found.peers_counted) == ("part", True, False)


BAD = {
    "size of none": ({"group": "g", "group-size": "0", **RACK}, "whole numbers from 2 to 4096"),
    "size of one": ({"group": "g", "group-size": "1", **RACK}, "whole numbers from 2 to 4096"),
    "size too large": ({"group": "g", "group-size": "4097", **RACK}, "from 2 to 4096"),
    "size no number": ({"group": "g", "group-size": "two", **RACK}, "from 2 to 4096"),
    "name with a slash": ({"group": "a/b", **FOUR, **RACK}, "allowed are at most 253 letters"),
    "domain no label": (
        {"group": "g", **FOUR, "group-domain": "a b"},
        "allowed are node, nvlink-domain and keys of node labels",
    ),
    "domain without group": (RACK, "the pod is in no group"),
    "group without size": ({"group": "g", **RACK}, "set gpu-topology.io/group-size"),
    "group without domain": ({"group": "g", **FOUR}, "group-domain is missing"),
}


@pytest.mark.parametrize(("annotations", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_has_one_clear_reason(annotations: dict[str, str], words: str) -> None:
    reason = refusal(annotations)
    assert words in reason
    assert reason.startswith("annotation gpu-topology.io/group")
    assert "\n" not in reason
    assert len(reason) < 200


KEPT = {
    "ours": manifest({"group": "train", **FOUR, **RACK}),
    "Job": manifest({**FOUR, **RACK}, JOB),
    "coscheduling": manifest({}, COSCHEDULING),
    "schedulingGroup": manifest({**FOUR, **RACK}, spec=GANG),
    "part of a gang": manifest({"group": "part", **FOUR, **RACK}, spec=GANG),
    "named like its gang": manifest({"group": "train", **FOUR, **RACK}, spec=GANG),
}


@pytest.mark.parametrize("written", KEPT.values(), ids=KEPT)
def test_a_snapshot_keeps_the_group_reference(written: dict[str, Any]) -> None:
    record = record_of(written)
    assert record.group_ref is not None
    assert record_of(manifest_of(record)).group_ref == record.group_ref
