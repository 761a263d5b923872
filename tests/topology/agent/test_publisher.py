"""The writer of the record, against an API server that behaves, on a clock that the test moves."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crd import faults
from tests.fakes.apiserver import FakeApiServer
from tests.topology.agent.model.oversizedmachines import TOO_LARGE
from topology import codec
from topology.agent.publisher import AGAIN, FIRST_BACKOFF, JITTER, LONGEST_BACKOFF, Publisher
from topology.core.devices import DeviceId, GpuResource, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import READY, Allocation, Condition, Report
from topology.kubeapi.apiserver import ApiFailure, ApiServer
from topology.machines import machine

RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"
RECORD = f"{RECORDS}/n"
TOPOLOGY = machine("dgx1-v100").topology("n")
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-1"}


def report(*gpus: int, boot: str = "boot-1") -> Report:
    """A pod for each of these GPUs."""
    held = tuple(
        Allocation(
            PodUid(f"uid-{i}"), "ns", f"p{i}", "main", "nvidia.com/gpu",
            (DeviceId(TOPOLOGY.gpus[i].uuid),),
        )
        for i in gpus
    )  # fmt: skip
    ready = Condition(READY, True, "Watching", "", "2026-01-01T12:00:00Z")
    return Report(boot, 0, None, held, conditions=(ready,))


class Desk:
    """A publisher, its API server and its clock."""

    def __init__(self, server: FakeApiServer, api: ApiServer) -> None:
        self.server = server
        self.api = api
        self.now = 0.0
        self.publisher = self.another()

    def another(self) -> Publisher:
        """The publisher of an agent that starts now."""
        return Publisher(self.api, NodeName("n"), lambda: self.now, random.Random(1), 60.0)

    def write(self, found: Report, deletions: int = 0) -> bool:
        return self.publisher.write(TOPOLOGY, found, deletions)

    @property
    def record(self) -> dict[str, Any]:
        return self.server.read(RECORD)

    @property
    def published(self) -> Report:
        return codec.decode_report(self.record["status"])

    @property
    def held(self) -> list[str]:
        return [a.pod for a in self.published.allocations]

    @property
    def writes(self) -> list[str]:
        """What has been written so far, request by request."""
        return [
            f"{r.method} {r.path.removeprefix(RECORDS) or '/'}"
            for r in self.server.requests
            if r.method != "GET"
        ]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with FakeApiServer() as server:
        server.validate(RECORDS, faults)
        api = ApiServer.from_kubeconfig(server.write_kubeconfig(tmp_path / "kubeconfig"))
        yield Desk(server, api)
        api.close()


# --- what is written, and when ----------------------------------------------------------------


def test_spec_and_status_are_written_apart_and_only_when_they_change(desk: Desk) -> None:
    desk.publisher.owner = OWNER
    assert desk.write(report())
    assert desk.writes == ["POST /", "PUT /n/status"]
    assert codec.decode(desk.record).topology == TOPOLOGY
    assert desk.record["metadata"]["ownerReferences"] == [OWNER]
    assert desk.write(report())
    assert len(desk.writes) == 2
    assert desk.write(report(5))
    assert desk.writes[2:] == ["PUT /n/status"]
    fewer = machine("p3.8xlarge").topology("n")
    assert desk.publisher.write(fewer, report())
    assert sorted(desk.writes[3:]) == ["PUT /n", "PUT /n/status"]
    assert desk.publisher.counts.written == {"spec": 2, "status": 3}


HEARTBEATS = [
    # time, whether a status is written though nothing has changed
    (0.0, True),
    (60 * (1 - JITTER) - 0.1, False),
    (60 * (1 + JITTER), True),
    (60 * (1 + JITTER) + 1, False),
    (2 * 60 * (1 + JITTER), True),
]


def test_a_heartbeat_raises_the_sequence_and_nothing_else(desk: Desk) -> None:
    sequence = 0
    for now, beats in HEARTBEATS:
        desk.now = now
        assert desk.write(report(5))
        assert desk.published.sequence == sequence + beats, f"at {now} s"
        assert desk.publisher.next_write() > now
        sequence = desk.published.sequence


def test_what_an_older_resource_drops_is_written_again_now_and_then(desk: Desk) -> None:
    """A schema that does not know a field drops it without a word. Once the resource is upgraded
    the field has to come, although nothing has changed on the node."""

    def dropping(record: dict[str, Any]) -> list[str]:
        record["spec"]["devices"][0].pop("numaNode", None)
        return []

    desk.server.validate(RECORDS, dropping)
    assert desk.write(report())
    assert "numaNode" not in desk.record["spec"]["devices"][0]
    desk.now = AGAIN * (1 - JITTER) - 1
    assert desk.write(report())
    assert "PUT /n" not in desk.writes, "not with each heartbeat: 5,000 agents may do it"
    desk.now = AGAIN * (1 + JITTER)
    assert desk.write(report())
    assert desk.writes.count("PUT /n") == 1
    assert desk.write(report())
    assert desk.writes.count("PUT /n") == 1
    desk.server.validate(RECORDS, faults)  # the upgrade
    desk.now = 2 * AGAIN * (1 + JITTER)
    assert desk.write(report())
    assert codec.decode(desk.record).topology == TOPOLOGY
    desk.now = 4 * AGAIN * (1 + JITTER)
    assert desk.write(report())
    assert desk.writes.count("PUT /n") == 2


def test_it_is_reported_when_a_whole_report_was_last_accepted(desk: Desk) -> None:
    def at() -> float | None:
        return desk.publisher.counts.report_at

    assert at() is None
    desk.now = 5.0
    assert desk.write(report())
    assert at() == 5.0
    desk.now = 20.0
    assert desk.write(report())
    assert at() == 5.0, "nothing was due"
    desk.now = 5 + 60 * (1 + JITTER)
    assert desk.write(report())
    assert at() == desk.now


def test_a_deletion_counts_as_a_change_of_its_own(desk: Desk) -> None:
    written = []
    for deletions in (0, 1, 1, 2):
        desk.write(report(), deletions)
        written.append(desk.published.sequence)
    assert written == [1, 2, 2, 3]


def test_a_node_that_was_made_anew_owns_the_record(desk: Desk) -> None:
    desk.publisher.owner = OWNER
    desk.write(report())
    desk.publisher.owner = {**OWNER, "uid": "node-2"}
    desk.write(report())
    assert desk.record["metadata"]["ownerReferences"][0]["uid"] == "node-2"
    assert codec.decode(desk.record).topology == TOPOLOGY


# --- the agent before this one ----------------------------------------------------------------


def test_the_sequence_goes_on_in_one_boot_and_starts_anew_in_the_next(desk: Desk) -> None:
    desk.write(report(1))
    desk.write(report(2))
    desk.publisher = desk.another()
    former = desk.publisher.former()
    assert former is not None
    assert former.topology == TOPOLOGY
    assert former.report is not None
    assert former.report.allocations == report(2).allocations
    desk.write(report(3))
    assert desk.published.sequence == 3
    desk.publisher = desk.another()
    desk.publisher.former()
    desk.write(report(boot="boot-2"))
    assert (desk.published.boot_id, desk.published.sequence) == ("boot-2", 1)


def test_without_a_record_there_is_no_former(desk: Desk) -> None:
    assert desk.publisher.former() is None


def test_a_record_that_cannot_be_read_is_replaced(desk: Desk) -> None:
    desk.server.put(RECORDS, {"metadata": {"name": "n"}, "spec": {"devices": "none"}})
    assert desk.publisher.former() is None
    assert desk.write(report())
    assert codec.decode(desk.record).topology == TOPOLOGY


def test_a_former_record_that_cannot_be_read_is_a_failure(desk: Desk) -> None:
    desk.server.refuse(503, times=None)
    with pytest.raises(ApiFailure):
        desk.publisher.former()


def test_another_boots_hardware_is_not_used_for_this_boot(desk: Desk) -> None:
    """After a reboot with a driver that is slow, nobody has looked yet."""
    desk.write(report())
    desk.publisher = desk.another()
    desk.publisher.former()
    assert desk.publisher.write(None, report(boot="boot-1"))
    assert codec.decode(desk.record).topology == TOPOLOGY
    assert desk.publisher.write(None, report(boot="boot-2"))
    assert codec.decode(desk.record).topology.gpus == ()


# --- others write, too ------------------------------------------------------------------------


def test_changes_of_other_clients_are_overwritten(desk: Desk) -> None:
    desk.write(report(1))
    wrong = copy.deepcopy(desk.record)
    wrong["spec"]["devices"] = wrong["spec"]["devices"][:2]
    wrong["spec"]["links"] = []
    wrong["status"]["allocations"] = []
    wrong["status"]["sequence"] = 1000
    desk.server.put(RECORDS, wrong)
    assert desk.write(report(1, 2))
    assert desk.held == ["p1", "p2"]
    assert codec.decode(desk.record).topology == TOPOLOGY
    assert desk.published.sequence > 1000, "the extender passes over whatever does not follow"


def test_two_agents_of_one_node_may_overlap(desk: Desk) -> None:
    """The GPU operator's label appears: one DaemonSet's pod comes before the other's is gone."""
    desk.write(report(1))
    comes, goes = desk.another(), desk.publisher
    comes.former()
    sequences = [desk.published.sequence]
    for held in ((1, 2), (1, 2, 3), (2, 3)):
        for writer in (comes, goes, comes):
            assert writer.write(TOPOLOGY, report(*held))
            assert desk.held == [f"p{i}" for i in held]
            assert codec.decode(desk.record).topology == TOPOLOGY
            sequences.append(desk.published.sequence)
    assert sequences == sorted(sequences)
    desk.now += 200.0  # the other is gone
    assert comes.write(TOPOLOGY, report(2, 3))
    assert desk.published.sequence > sequences[-1]


def test_a_deleted_record_is_there_again_with_the_next_write(desk: Desk) -> None:
    desk.write(report(1))
    desk.server.remove(RECORD)
    assert desk.write(report(1))
    assert desk.server.items(RECORDS) == []  # nothing was due, and nobody has noticed
    desk.now = 80.0
    assert desk.write(report(1))
    assert desk.held == ["p1"]
    assert desk.published.sequence > 1
    assert codec.decode(desk.record).topology == TOPOLOGY


# --- failures ---------------------------------------------------------------------------------


def test_after_a_failure_a_write_waits_and_is_then_tried_again(desk: Desk) -> None:
    desk.write(report())
    desk.server.refuse(500, times=2)
    assert not desk.write(report(1))
    again = desk.publisher.next_write()
    assert 0 <= again <= FIRST_BACKOFF
    asked = len(desk.server.requests)
    assert not desk.write(report(1))
    assert len(desk.server.requests) == asked, "too early: nobody is asked"
    assert "500" in desk.publisher.problem
    desk.now = again
    assert not desk.write(report(1))
    assert again <= desk.publisher.next_write() <= again + 2 * FIRST_BACKOFF
    desk.now = desk.publisher.next_write()
    assert desk.write(report(1))
    assert (desk.held, desk.publisher.problem) == (["p1"], "")
    assert desk.publisher.counts.failed == {"500": 2}


def test_a_write_waits_for_ten_seconds_at_most(desk: Desk) -> None:
    desk.server.refuse(503, times=None)
    for _ in range(40):
        desk.write(report())
        assert 0 <= desk.publisher.next_write() - desk.now <= LONGEST_BACKOFF
        desk.now = desk.publisher.next_write()


def refusing_holders(record: dict[str, Any]) -> list[str]:
    """The schema of a cluster that is stricter than ours: nobody may hold a GPU."""
    held = record.get("status", {}).get("allocations")
    return [".status.allocations"] if held else faults(record)


def test_a_record_that_is_refused_for_what_is_in_it_is_replaced_by_a_bare_one(desk: Desk) -> None:
    desk.server.validate(RECORDS, refusing_holders)
    assert desk.write(report())
    assert not desk.write(report(1))
    assert "the API server rejects the record: 422" in desk.published.not_ready
    assert desk.held == []
    sequence = desk.published.sequence
    desk.now = desk.publisher.next_write()
    assert not desk.write(report(1))
    assert desk.published.sequence == sequence, "it is said once"
    desk.server.validate(RECORDS, faults)
    desk.now = desk.publisher.next_write()
    assert desk.write(report(1))
    assert desk.held == ["p1"]
    assert desk.published.sequence > sequence


def test_a_record_that_has_become_too_large_keeps_its_spec_and_says_so_once(desk: Desk) -> None:
    assert desk.write(report(0, boot="boot"))
    spec = desk.record["spec"]
    for _ in range(3):
        assert desk.publisher.write(TOO_LARGE.topology, TOO_LARGE.report)
    assert desk.writes == ["POST /", "PUT /n/status", "PUT /n/status"]
    assert desk.record["spec"] == spec
    assert (desk.held, desk.published.allocatable) == ([], None)
    assert "2,000 shares of one GPU, but at most 1,024 are allowed" in desk.published.not_ready
    assert desk.write(report(1, boot="boot"))
    assert (desk.held, desk.published.not_ready) == (["p1"], "")
    assert desk.record["spec"] == spec


@pytest.mark.parametrize("former", [None, "another boot"])
def test_of_a_first_record_that_is_too_large_the_status_alone_is_reported(
    desk: Desk, former: str | None
) -> None:
    """There has to be an object: it has no hardware, and that of another boot does not stay."""
    if former:
        assert desk.write(report(0, boot=former))
        desk.publisher = desk.another()
        desk.publisher.former()
    assert desk.publisher.write(TOO_LARGE.topology, TOO_LARGE.report)
    assert codec.decode(desk.record).topology.gpus == ()
    assert "the record is too large" in desk.published.not_ready
    writes = len(desk.writes)
    assert desk.publisher.write(TOO_LARGE.topology, TOO_LARGE.report)
    assert len(desk.writes) == writes, "it is said once"


def test_a_spec_that_is_refused_does_not_hide_the_node(desk: Desk) -> None:
    def refusing_gpus(record: dict[str, Any]) -> list[str]:
        return [".spec.devices"] if record["spec"].get("devices") else faults(record)

    desk.server.validate(RECORDS, refusing_gpus)
    assert not desk.write(report())
    assert "rejects" in desk.published.not_ready
    assert codec.decode(desk.record).topology == NodeTopology(NodeName("n"), ())
    assert desk.publisher.counts.report_at is None, "the bare one is no report"
    desk.server.validate(RECORDS, faults)
    desk.now = desk.publisher.next_write()
    assert desk.write(report())
    assert codec.decode(desk.record).topology == TOPOLOGY


def test_what_a_record_cannot_say_is_reported_in_a_line(desk: Desk) -> None:
    assert desk.write(report(1))
    nameless = replace(TOPOLOGY, resources=(GpuResource(""),))
    assert not desk.publisher.write(nameless, report(1))
    said = desk.published.not_ready
    assert said == (
        "the API server rejects the record: name: string should have at least 1 character, not ''"
    )
    assert desk.publisher.problem in said
    desk.now = desk.publisher.next_write()
    assert desk.write(report(1))


def test_a_record_that_cannot_be_written_at_all_is_a_failure(desk: Desk) -> None:
    desk.server.refuse(403, times=None, path="gputopologies")
    assert not desk.write(report())
    assert "403" in desk.publisher.problem
    assert desk.publisher.counts.failed == {"403": 1}
