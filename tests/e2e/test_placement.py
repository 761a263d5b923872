"""Pods through a real kube-apiserver and kube-scheduler, nodes of four kinds."""

import json
import time
from dataclasses import replace

import pytest

from tests.e2e.cluster import RECORDS, RealCluster
from tests.waiting import eventually
from topology.codec import encode
from topology.core.devices import DeviceId, PodUid
from topology.core.graph import AllocatorConfig
from topology.core.report import Allocation, Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}
UNMODELLED = AllocatorConfig("any")
QUIET = 12.0


@pytest.fixture(scope="module", autouse=True)
def _fleet(real: RealCluster) -> None:
    """One all-linked node, one cube mesh, one bridged node half taken, one PCIe-only node.

    Their plugin is one that is not modelled: whatever is free may be handed out.
    """
    for name, kind in (("h100", "hgx-h100-8"), ("v100", "dgx1-v100"), ("l40s", "l40s-4")):
        real.add_machine(machine(kind).topology(name, allocator=UNMODELLED))
    bridged = machine("a100-pcie-4-bridged").topology("bridged", allocator=UNMODELLED)
    # Somebody else's pod, bound by hand, holds one GPU of each pair.
    holder = real_holder(real, "bridged", 2)
    ids = tuple(DeviceId(bridged.gpus[p].uuid) for p in (0, 2))
    allocation = Allocation(PodUid(holder), "default", "holder", "main", "nvidia.com/gpu", ids)
    real.add_machine(bridged, Report("boot", 1, allocations=(allocation,)))


def real_holder(real: RealCluster, node: str, gpus: int) -> str:
    return str(real.add_pod("holder", gpus, nodeName=node)["metadata"]["uid"])


def let_go(real: RealCluster, name: str) -> None:
    """Delete a pod at once. Its kubelet was never seen to know it, so the first report after that
    proves nothing yet; as an agent does, another one comes for as long as the pod counts."""

    def gone() -> bool:
        sequence = int(real.record("h100")["status"]["sequence"]) + 1
        real.put_report("h100", Report("boot", sequence))
        return name not in {p["name"] for p in real.admin.get("/v1/nodes/h100").json()["pods"]}

    real.remove_pod(name)
    eventually(gone, f"{name} counts no more", every=1.0)


@pytest.mark.parametrize("number", range(4))
def test_a_pair_lands_where_every_pair_is_linked(real: RealCluster, number: int) -> None:
    real.add_pod(f"pair-{number}", 2, NVLINK)
    assert real.node_of(f"pair-{number}") == "h100"
    annotations = real.pod(f"pair-{number}")["metadata"]["annotations"]
    placement = json.loads(annotations["gpu-topology.io/placement"])
    assert placement["node"] == "h100"
    assert placement["verdict"] == "guaranteed"
    # Reports never come here, so all eight GPUs stay possible until the last bind is in flight.
    assert len(placement["sets"]) == 16
    assert placement["setsOmitted"] == 12


def test_the_fifth_pair_waits_and_describe_says_why(real: RealCluster) -> None:
    real.add_pod("pair-4", 2, NVLINK)
    message = real.unschedulable("pair-4")
    assert "0/4 nodes are available" in message
    assert "2 not guaranteed: the node may hand out GPUs without link=nvlink" not in message
    for reason in (
        "1 Insufficient nvidia.com/gpu",
        "1 not guaranteed: the node may hand out GPUs without link=nvlink",
        "1 no set of 2 free GPUs with link=nvlink",
        "1 the hardware has no set of 2 GPUs with link=nvlink",
    ):
        assert reason in message
    words = message.split(". ")[0]
    real.until(
        lambda: words in real.kubectl("describe", "pod", "pair-4").replace("\n", " "),
        "an Event says so, too",
    )


def test_a_pod_that_ends_lets_the_waiting_one_in(real: RealCluster) -> None:
    let_go(real, "pair-0")
    assert real.node_of("pair-4") == "h100"


def test_a_pod_that_can_never_fit_stays_pending_with_few_events(real: RealCluster) -> None:
    before = real.calls("filter")
    real.add_pod("quad", 4, {"gpu-model": "B200*", "link": "nvlink"})
    message = real.unschedulable("quad")
    time.sleep(QUIET)
    calls = real.calls("filter") - before
    assert ", not b200*" in message
    assert real.unschedulable("quad") == message
    print(f"filter calls in {QUIET:.0f} s: {calls}")
    assert 1 <= calls <= 2


def test_a_new_node_lets_it_in(real: RealCluster) -> None:
    real.add_record(machine("dgx-b200").topology("b200"))
    real.add_node("b200", 8)
    started = time.monotonic()
    assert real.node_of("quad") == "b200"
    print(f"bound {time.monotonic() - started:.2f} s after the node")


def test_a_new_node_before_its_report_lets_it_in(real: RealCluster) -> None:
    real.add_pod("tray", 4, {"gpu-model": "GB200", "link": "nvlink"})
    real.unschedulable("tray")
    real.add_node("tray-1", 4)
    real.until(
        lambda: "no topology report" in real.unschedulable("tray"), "the new node is looked at"
    )
    started = time.monotonic()
    real.add_record(machine("gb200-tray").topology("tray-1"))
    assert real.node_of("tray") == "tray-1"
    print(f"bound {time.monotonic() - started:.2f} s after the report")


def test_a_change_of_a_record_alone_lets_it_in(real: RealCluster) -> None:
    whole = machine("hgx-a100-4").topology("flaky")
    unlinked = replace(whole, links=tuple(replace(k, nvlinks=0) for k in whole.links))
    real.add_machine(unlinked)
    real.until(lambda: "A100" in real.admin.get("/v1/nodes/flaky").text, "the record is seen")
    real.add_pod("triple", 3, {"gpu-model": "A100*", "link": "nvlink"})
    assert "the hardware has no set of 3 GPUs with" in real.unschedulable("triple")
    time.sleep(2)
    started = time.monotonic()
    real.patch(f"{RECORDS}/flaky", {"spec": encode(whole)["spec"]})
    assert real.node_of("triple") == "flaky"
    print(f"bound {time.monotonic() - started:.2f} s after the record changed")


def test_a_malformed_record_costs_its_node_only(real: RealCluster) -> None:
    broken = encode(machine("hgx-a100-4").topology("broken"))
    spec = broken["spec"]
    assert isinstance(spec, dict)
    del spec["devices"][3]  # the links still name GPU 3; the schema cannot see that
    real.create(RECORDS, broken)
    real.add_node("broken", 4)
    real.until_told("broken", lambda found: found["problem"])
    real.add_pod("after", 2, {"gpu-model": "V100*"})
    assert real.node_of("after") == "v100"
    answer = real.admin.get("/v1/nodes/broken").json()
    assert answer["problem"] == "spec.links: GPU 3 is not among the devices"


def test_the_server_refuses_what_the_schema_forbids(real: RealCluster) -> None:
    record = encode(machine("l40s-4").topology("bad"))
    spec = record["spec"]
    assert isinstance(spec, dict)
    spec["links"][0]["pcie"] = "QPI"
    answer = real.api.post(RECORDS, json=record)
    assert answer.status_code == 422
    assert "pcie" in answer.text
    spec["links"][0] |= {"pcie": "SYS", "a": 1, "b": 0}
    answer = real.api.post(RECORDS, json=record)
    assert answer.status_code == 422
    assert "a must be below b" in answer.text


def test_a_plain_pod_spares_the_linked_gpus(real: RealCluster) -> None:
    before = real.calls("prioritize")
    real.add_pod("notebook", 1)
    # PCIe only, or the node whose pairs are broken already.
    assert real.node_of("notebook") in ("l40s", "bridged")
    assert real.calls("prioritize") == before + 1
    real.until_bound("notebook")


def test_a_pod_without_gpus_never_reaches_us(real: RealCluster) -> None:
    def calls() -> list[int]:
        return [real.calls(verb) for verb in ("filter", "prioritize", "bind")]

    before = calls()
    real.add_pod("web", 0)
    real.node_of("web")
    assert calls() == before


def test_kubectl_shows_the_records(real: RealCluster) -> None:
    shown = real.kubectl("get", "gputopo", "h100")
    assert shown.split()[:6] == ["NAME", "GPUS", "FREE", "LINKS", "ALLOCATOR", "READY"]
    assert " any " in shown


def test_a_restarted_extender_knows_what_was_promised(real: RealCluster) -> None:
    """The ledger entries of bound, unacknowledged pods come back from the pods themselves."""
    real.stop_extender()
    real.add_pod("late", 2, {**NVLINK, "gpu-model": "H100*"})
    time.sleep(1)
    assert real.pod("late")["spec"].get("nodeName") is None
    real.start_extender()
    pods = {p["name"] for p in real.admin.get("/v1/nodes/h100").json()["pods"]}
    assert pods == {"pair-1", "pair-2", "pair-3", "pair-4"}
    let_go(real, "pair-1")
    assert real.node_of("late") == "h100"


def test_the_scheduler_has_no_complaint_about_us(real: RealCluster) -> None:
    """Whatever the scheduler logged as an error about an extender, but for the outage above."""
    log = real.control_plane.log("kube-scheduler")
    complaints = [
        line
        for line in log.splitlines()
        if line.startswith("E") and "extender" in line.lower() and "connection refused" not in line
    ]
    assert complaints == []
