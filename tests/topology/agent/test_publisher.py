"""The writer of the record, against an API server that behaves, on a clock that the test moves."""

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


class PublisherRun:
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
def run(tmp_path: Path) -> Iterator[PublisherRun]:
    with FakeApiServer() as server:
        server.validate(RECORDS, faults)
        api = ApiServer.from_kubeconfig(server.write_kubeconfig(tmp_path / "kubeconfig"))
        yield PublisherRun(server, api)
        api.close()


# --- what is written, and when ----------------------------------------------------------------


def test_spec_and_status_are_written_apart_and_only_when_they_change(run: PublisherRun) -> None:
    run.publisher.owner = OWNER
    assert run.write(report())
    assert run.writes == ["POST /", "PUT /n/status"]
    assert codec.decode(run.record).topology == TOPOLOGY
    assert run.record["metadata"]["ownerReferences"] == [OWNER]
    assert run.write(report())
    assert len(run.writes) == 2
    assert run.write(report(5))
    assert run.writes[2:] == ["PUT /n/status"]
    assert run.publisher.write(machine("p3.8xlarge").topology("n"), report())
    assert sorted(run.writes[3:]) == ["PUT /n", "PUT /n/status"]
    assert run.publisher.counts.written == {"spec": 2, "status": 3}


HEARTBEATS = [
    # time, whether a status is written though nothing has changed
    (0.0, True),
    (60 * (1 - JITTER) - 0.1, False),
    (60 * (1 + JITTER), True),
    (60 * (1 + JITTER) + 1, False),
    (2 * 60 * (1 + JITTER), True),
]


def test_a_heartbeat_raises_the_sequence_and_nothing_else(run: PublisherRun) -> None:
    sequence = 0
    for now, beats in HEARTBEATS:
        run.now = now
        assert run.write(report(5))
        assert run.published.sequence == sequence + beats, f"at {now} s"
        assert run.publisher.next_write() > now
        sequence = run.published.sequence


def test_what_an_older_resource_drops_is_written_again_now_and_then(run: PublisherRun) -> None:
    """A schema that does not know a field drops it without a word. Once the resource is upgraded
    the field has to come, although nothing has changed on the node."""

    def dropping(record: dict[str, Any]) -> list[str]:
        record["spec"]["devices"][0].pop("numaNode", None)
        return []

    run.server.validate(RECORDS, dropping)
    assert run.write(report())
    assert "numaNode" not in run.record["spec"]["devices"][0]
    run.now = AGAIN * (1 - JITTER) - 1
    assert run.write(report())
    assert "PUT /n" not in run.writes, "not with each heartbeat: 5,000 agents may do it"
    run.now = AGAIN * (1 + JITTER)
    assert run.write(report())
    assert run.writes.count("PUT /n") == 1
    assert run.write(report())
    assert run.writes.count("PUT /n") == 1
    run.server.validate(RECORDS, faults)  # the upgrade
    run.now = 2 * AGAIN * (1 + JITTER)
    assert run.write(report())
    assert codec.decode(run.record).topology == TOPOLOGY
    run.now = 4 * AGAIN * (1 + JITTER)
    assert run.write(report())
    assert run.writes.count("PUT /n") == 2


def test_it_is_reported_when_a_whole_report_was_last_accepted(run: PublisherRun) -> None:
    def at() -> float | None:
        return run.publisher.counts.report_at

    assert at() is None
    run.now = 5.0
    assert run.write(report())
    assert at() == 5.0
    run.now = 20.0
    assert run.write(report())
    assert at() == 5.0, "nothing was due"
    run.now = 5 + 60 * (1 + JITTER)
    assert run.write(report())
    assert at() == run.now


def test_a_deletion_counts_as_a_change_of_its_own(run: PublisherRun) -> None:
    written = []
    for deletions in (0, 1, 1, 2):
        run.write(report(), deletions)
        written.append(run.published.sequence)
    assert written == [1, 2, 2, 3]


def test_a_node_that_was_made_anew_owns_the_record(run: PublisherRun) -> None:
    run.publisher.owner = OWNER
    run.write(report())
    run.publisher.owner = {**OWNER, "uid": "node-2"}
    run.write(report())
    assert run.record["metadata"]["ownerReferences"][0]["uid"] == "node-2"
    assert codec.decode(run.record).topology == TOPOLOGY


# --- the agent before this one ----------------------------------------------------------------


def test_the_sequence_goes_on_in_one_boot_and_starts_anew_in_the_next(run: PublisherRun) -> None:
    run.write(report(1))
    run.write(report(2))
    run.publisher = run.another()
    former = run.publisher.former()
    assert former is not None
    assert former.topology == TOPOLOGY
    assert former.report is not None
    assert former.report.allocations == report(2).allocations
    run.write(report(3))
    assert run.published.sequence == 3
    run.publisher = run.another()
    run.publisher.former()
    run.write(report(boot="boot-2"))
    assert (run.published.boot_id, run.published.sequence) == ("boot-2", 1)


def test_without_a_record_there_is_no_former(run: PublisherRun) -> None:
    assert run.publisher.former() is None


def test_a_record_that_cannot_be_read_is_replaced(run: PublisherRun) -> None:
    run.server.put(RECORDS, {"metadata": {"name": "n"}, "spec": {"devices": "none"}})
    assert run.publisher.former() is None
    assert run.write(report())
    assert codec.decode(run.record).topology == TOPOLOGY


def test_a_former_record_that_cannot_be_read_is_a_failure(run: PublisherRun) -> None:
    run.server.refuse(503, times=None)
    with pytest.raises(ApiFailure):
        run.publisher.former()


def test_another_boots_hardware_is_not_used_for_this_boot(run: PublisherRun) -> None:
    """After a reboot with a slow driver, the hardware is not observed yet."""
    run.write(report())
    run.publisher = run.another()
    run.publisher.former()
    assert run.publisher.write(None, report(boot="boot-1"))
    assert codec.decode(run.record).topology == TOPOLOGY
    assert run.publisher.write(None, report(boot="boot-2"))
    assert codec.decode(run.record).topology.gpus == ()


# --- others write, too ------------------------------------------------------------------------


def test_changes_of_other_clients_are_overwritten(run: PublisherRun) -> None:
    run.write(report(1))
    wrong = copy.deepcopy(run.record)
    wrong["spec"]["devices"] = wrong["spec"]["devices"][:2]
    wrong["spec"]["links"] = []
    wrong["status"]["allocations"] = []
    wrong["status"]["sequence"] = 1000
    run.server.put(RECORDS, wrong)
    assert run.write(report(1, 2))
    assert run.held == ["p1", "p2"]
    assert codec.decode(run.record).topology == TOPOLOGY
    assert run.published.sequence > 1000, "the extender passes over whatever does not follow"


def test_two_agents_of_one_node_may_overlap(run: PublisherRun) -> None:
    """The GPU operator's label appears: one DaemonSet's pod comes before the other's is gone."""
    run.write(report(1))
    comes, goes = run.another(), run.publisher
    comes.former()
    sequences = [run.published.sequence]
    for held in ((1, 2), (1, 2, 3), (2, 3)):
        for writer in (comes, goes, comes):
            assert writer.write(TOPOLOGY, report(*held))
            assert run.held == [f"p{i}" for i in held]
            assert codec.decode(run.record).topology == TOPOLOGY
            sequences.append(run.published.sequence)
    assert sequences == sorted(sequences)
    run.now += 200.0  # the other is gone
    assert comes.write(TOPOLOGY, report(2, 3))
    assert run.published.sequence > sequences[-1]


def test_a_deleted_record_is_there_again_with_the_next_write(run: PublisherRun) -> None:
    run.write(report(1))
    run.server.remove(RECORD)
    assert run.write(report(1))
    assert run.server.items(RECORDS) == []  # nothing was due, and nobody has noticed
    run.now = 80.0
    assert run.write(report(1))
    assert run.held == ["p1"]
    assert run.published.sequence > 1
    assert codec.decode(run.record).topology == TOPOLOGY


# --- failures ---------------------------------------------------------------------------------


def test_after_a_failure_a_write_waits_and_is_then_tried_again(run: PublisherRun) -> None:
    run.write(report())
    run.server.refuse(500, times=2)
    assert not run.write(report(1))
    again = run.publisher.next_write()
    assert 0 <= again <= FIRST_BACKOFF
    asked = len(run.server.requests)
    assert not run.write(report(1))
    assert len(run.server.requests) == asked, "too early: nobody is asked"
    assert "500" in run.publisher.problem
    run.now = again
    assert not run.write(report(1))
    assert again <= run.publisher.next_write() <= again + 2 * FIRST_BACKOFF
    run.now = run.publisher.next_write()
    assert run.write(report(1))
    assert (run.held, run.publisher.problem) == (["p1"], "")
    assert run.publisher.counts.failed == {"500": 2}


def test_a_write_waits_for_ten_seconds_at_most(run: PublisherRun) -> None:
    run.server.refuse(503, times=None)
    for _ in range(40):
        run.write(report())
        assert 0 <= run.publisher.next_write() - run.now <= LONGEST_BACKOFF
        run.now = run.publisher.next_write()


def refusing_holders(record: dict[str, Any]) -> list[str]:
    """The schema of a cluster that is stricter than ours: no pod may have a GPU."""
    held = record.get("status", {}).get("allocations")
    return [".status.allocations"] if held else faults(record)


def test_a_record_that_is_rejected_for_its_content_is_replaced_by_a_bare_one(
    run: PublisherRun,
) -> None:
    run.server.validate(RECORDS, refusing_holders)
    assert run.write(report())
    assert not run.write(report(1))
    assert "the API server rejects the record: 422" in run.published.not_ready
    assert run.held == []
    sequence = run.published.sequence
    run.now = run.publisher.next_write()
    assert not run.write(report(1))
    assert run.published.sequence == sequence, "it is said once"
    run.server.validate(RECORDS, faults)
    run.now = run.publisher.next_write()
    assert run.write(report(1))
    assert run.held == ["p1"]
    assert run.published.sequence > sequence


def test_a_record_that_has_become_too_large_keeps_its_spec_and_is_logged_once(
    run: PublisherRun,
) -> None:
    assert run.write(report(0, boot="boot"))
    spec = run.record["spec"]
    for _ in range(3):
        assert run.publisher.write(TOO_LARGE.topology, TOO_LARGE.report)
    assert run.writes == ["POST /", "PUT /n/status", "PUT /n/status"]
    assert run.record["spec"] == spec
    assert (run.held, run.published.allocatable) == ([], None)
    assert "2,000 shares of one GPU, but at most 1,024 are allowed" in run.published.not_ready
    assert run.write(report(1, boot="boot"))
    assert (run.held, run.published.not_ready) == (["p1"], "")
    assert run.record["spec"] == spec


@pytest.mark.parametrize("former", [None, "another boot"])
def test_of_a_first_record_that_is_too_large_the_status_alone_is_reported(
    run: PublisherRun, former: str | None
) -> None:
    """There has to be an object: it has no hardware, and that of another boot does not stay."""
    if former:
        assert run.write(report(0, boot=former))
        run.publisher = run.another()
        run.publisher.former()
    assert run.publisher.write(TOO_LARGE.topology, TOO_LARGE.report)
    assert codec.decode(run.record).topology.gpus == ()
    assert "the record is too large" in run.published.not_ready
    writes = len(run.writes)
    assert run.publisher.write(TOO_LARGE.topology, TOO_LARGE.report)
    assert len(run.writes) == writes, "it is said once"


def test_a_spec_that_is_refused_does_not_hide_the_node(run: PublisherRun) -> None:
    def refusing_gpus(record: dict[str, Any]) -> list[str]:
        return [".spec.devices"] if record["spec"].get("devices") else faults(record)

    run.server.validate(RECORDS, refusing_gpus)
    assert not run.write(report())
    assert "rejects" in run.published.not_ready
    assert codec.decode(run.record).topology == NodeTopology(NodeName("n"), ())
    assert run.publisher.counts.report_at is None, "the bare one is no report"
    run.server.validate(RECORDS, faults)
    run.now = run.publisher.next_write()
    assert run.write(report())
    assert codec.decode(run.record).topology == TOPOLOGY


def test_what_a_record_cannot_say_is_reported_in_a_line(run: PublisherRun) -> None:
    assert run.write(report(1))
    nameless = replace(TOPOLOGY, resources=(GpuResource(""),))
    assert not run.publisher.write(nameless, report(1))
    message = run.published.not_ready
    assert message == (
        "the API server rejects the record: name: string should have at least 1 character, not ''"
    )
    assert run.publisher.problem in message
    run.now = run.publisher.next_write()
    assert run.write(report(1))


def test_a_record_that_cannot_be_written_at_all_is_a_failure(run: PublisherRun) -> None:
    run.server.refuse(403, times=None, path="gputopologies")
    assert not run.write(report())
    assert "403" in run.publisher.problem
    assert run.publisher.counts.failed == {"403": 1}
