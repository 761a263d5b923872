"""The agent on NVIDIA's own mock of libnvidia-ml.so: its profiles, odd machines, and live faults.

What a machine should be is read here from the mock's configuration, by code of its own.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.transitions import with_record
from tests import recorded
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.kubelet import FakeKubelet
from tests.nvidiamock import NvidiaMock, environment
from tests.programs import free_port, started
from tests.waiting import FOREVER, eventually
from topology.codec import Record, decode
from topology.core.links import GBps, LinkKind, Via
from topology.core.requests import Constraints, gpu_request

ROOT = Path(__file__).parents[3]
AGENT = [sys.executable, "-m", "scheduler_extender", "agent", "--node-name=n"]
RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"
MOST = 8  # GPUs that the mock plays
MACHINES = [
    *recorded.files("nvml-mock/configs", "*.yaml"),
    *recorded.files("nvml-mock/odd", "*.yaml"),
]
UNLIKE = {
    "no-gpus": "the mock plays eight GPUs of its own where it is told of none",
    "same-uuid": "no record of it can be right",
}


def context(mock: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent outside a cluster, whatever this machine is."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("KUBERNETES_")}
    return {**own, **mock}


def record_of(config: Path) -> Record:
    done = subprocess.run(
        [*AGENT, "--once", "--print", "--pod-resources=/nowhere"],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=FOREVER,
        env=context(environment(config)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return decode(yaml.safe_load(done.stdout), strict=True)


# What the configuration says.


def merged(over: Mapping[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    both = {**under, **over}
    for key in over.keys() & under.keys():
        if isinstance(over[key], dict) and isinstance(under[key], dict):
            both[key] = merged(over[key], under[key])
    return both


@dataclass
class MockMachine:
    """A machine, as its configuration tells it."""

    config: dict[str, Any]
    gpus: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        default = self.config["device_defaults"]
        self.gpus = [merged(each, default) for each in self.config["devices"]][:MOST]

    def bus(self, gpu: Mapping[str, Any]) -> str:
        return str(gpu["pci"]["bus_id"]).lower()

    def up(self, index: int) -> list[str]:
        """The far ends of a GPU's links that are up: addresses, or "switch"."""
        nvlink = self.config.get("nvlink") or {}
        for each in nvlink.get("device_links", ()):
            if each["index"] == index:
                up = [k for k in each["links"] if k.get("state", "active") in ("active", "up")]
                return [str(k.get("remote_pci_bus_id", "")).lower() for k in up]
        whole = nvlink.get("links_per_gpu", 0) if nvlink.get("switches") else 0
        return ["switch"] * whole

    def links(self, a: int, b: int) -> tuple[int, Via]:
        """How many links join two GPUs; a link that one end alone shows counts, too."""
        if any(self.gpus[i]["mig"]["mode_current"] == "enabled" for i in (a, b)):
            return 0, Via.DIRECT
        ends, back = self.up(a), self.up(b)
        there = [ends.count(self.bus(self.gpus[b])), back.count(self.bus(self.gpus[a]))]
        if any(there):
            return min(there) or max(there), Via.DIRECT
        switched = min(ends.count("switch"), back.count("switch"))
        if not switched or not all(self.registered(i) for i in (a, b)):
            return 0, Via.DIRECT
        return switched, Via.SWITCH

    def registered(self, index: int) -> bool:
        fabric = self.gpus[index].get("fabric")
        return fabric is None or fabric["state"] in ("completed", "auto")

    @property
    def fabric(self) -> str | None:
        answer = self.gpus[0].get("fabric")
        if answer is None or not all(map(self.registered, range(len(self.gpus)))):
            return None
        cluster = str(answer["cluster_uuid"]).lower()
        return None if not cluster.strip("0-") else f"{cluster}.{answer['clique_id']}"

    def neighbours(self, a: int, b: int) -> bool:
        """Whether two GPUs are surely below one PCIe root."""
        roots = (self.config.get("pcie_topology") or {}).get("root_complexes", ())
        homes = [{str(d).lower() for d in root["devices"]} for root in roots]
        buses = list(map(self.bus, self.gpus))
        alone = all(buses.count(buses[i]) == 1 for i in (a, b))  # on the odd machine two share one
        return alone and any({buses[a], buses[b]} <= home for home in homes)


def named(path: str) -> Any:
    """The first profile and an odd machine are tried in every run, the others in long ones."""
    quick = Path(path).stem in ("mock-nvml-config-h100", "gb200-in-progress")
    return pytest.param(path, id=Path(path).stem, marks=() if quick else pytest.mark.long)


@pytest.mark.parametrize(
    "path", [named(p) for p in MACHINES if isinstance(p, str) and Path(p).stem not in UNLIKE]
)
def test_the_record_of_a_machine(path: str) -> None:
    answer = MockMachine(yaml.safe_load(recorded.shared(path).read_text()))
    found = record_of(recorded.shared(path)).topology
    assert [(g.uuid, g.product, g.memory) for g in found.gpus] == [
        (g["uuid"], g["name"], g["memory"]["total_bytes"]) for g in answer.gpus
    ]
    pairs = list(combinations(range(len(answer.gpus)), 2))
    if Path(path).stem != "mig-one-enabled":  # the mock puts no single GPU into MIG mode
        assert {(k.a, k.b): (k.nvlinks, k.via) for k in found.links} == {
            pair: answer.links(*pair) for pair in pairs
        }
    assert {(k.a, k.b) for k in found.links if k.pcie in (LinkKind.PIX, LinkKind.PHB)} >= {
        pair for pair in pairs if answer.neighbours(*pair)
    }
    fabric = found.fabric and f"{found.fabric.cluster_uuid}.{found.fabric.clique_id}"
    assert fabric == answer.fabric


@pytest.mark.long
def test_two_gpus_of_one_uuid_are_a_contradiction() -> None:
    found = record_of(recorded.shared("nvml-mock", "odd", "same-uuid.yaml"))
    assert found.report is not None
    assert "devices.uuid" in found.report.not_ready
    assert found.topology.gpus == ()


@pytest.mark.long
@pytest.mark.parametrize(
    ("machine", "sick"),
    [
        ("dgx1v-links-down", dict.fromkeys((0, 3, 6, 7), "NVLinkNeverUp")),
        ("dgx1v", {}),
        ("bridged4", {}),
        ("unknown-far-ends", {}),
        ("gb200-tray-real", {}),
        ("gb200-in-progress", dict.fromkeys(range(8), "FabricNotReady")),
    ],
)
def test_what_is_wrong_since_the_boot(machine: str, sick: Mapping[int, str]) -> None:
    found = record_of(recorded.shared("nvml-mock", "odd", f"{machine}.yaml"))
    assert health(found) == sick


# Faults that come and go.


def health(record: Record) -> dict[int, str]:
    index = {gpu.uuid: gpu.index for gpu in record.topology.gpus}
    answer = record.report.health if record.report else ()
    # Which of two reasons is heard of first is chance.
    return {index[h.uuid]: ", ".join(sorted(h.reason.split(", "))) for h in answer}


@dataclass
class Playing:
    """An agent that runs on a machine of the mock."""

    mock: NvidiaMock
    api: FakeApiServer

    def record(self) -> Record | None:
        found = [each for each in self.api.items(RECORDS) if "status" in each]
        return decode(found[0], strict=False) if found else None

    def until(self, sick: Mapping[int, str]) -> Record:
        """Wait until the record says so of the GPUs' health, and return it."""

        def message() -> bool:
            record = self.record()
            return record is not None and health(record) == sick

        eventually(message, f"health is {sick}")
        found = self.record()
        assert found is not None
        return found


@contextmanager
def playing(profile: str, folder: Path) -> Iterator[Playing]:
    mock = NvidiaMock(folder / "mock", profile)
    with (
        tempfile.TemporaryDirectory(prefix="agent-") as sockets,
        FakeKubelet(Path(sockets)) as node,
        FakeApiServer() as api,
    ):
        node.allocatable(*mock.uuids)
        api.put("/api/v1/nodes", {"kind": "Node", "metadata": {"name": "n", "uid": "node-1"}})
        words = [
            f"--kubeconfig={api.write_kubeconfig(folder / 'kubeconfig')}",
            f"--pod-resources={node.socket}", f"--metrics-port={free_port()}",
            "--topology-manager-policy=none", "--allocator-policy=best-effort",
        ]  # fmt: skip
        with started(
            [*AGENT, *words], cwd=ROOT, env=context(mock.environment), stderr=subprocess.DEVNULL
        ):
            yield Playing(mock, api)


WHOLE = {
    "plain": gpu_request(8),
    "nvlink": gpu_request(8, Constraints(link=LinkKind.NVLINK)),
    "bandwidth": gpu_request(8, Constraints(min_bandwidth=GBps(400.0))),
}
ALL, NO_SPEED, NO_LINKS, NOBODY = {*WHOLE}, {"plain", "nvlink"}, {"plain"}, set[str]()
RECOVERY = "FabricRecovering"


def failing(xid: int) -> dict[str, Any]:
    """A GPU's next call meets an uncorrectable error and this Xid."""
    return {"failure": {"mode": "ecc_uncorrectable", "xid": {"code": xid}}}


FAULTS = {
    # fault: what a GPU is like, what the record says then, who passes, what it says afterwards
    "in progress": ({"fabric": {"state": "in_progress"}}, "FabricNotReady", NO_LINKS, ""),
    "not started": ({"fabric": {"state": "not_started"}}, "FabricNotReady", NO_LINKS, ""),
    "wrong place": (
        {"fabric": {"health": {"incorrect_configuration": "no_partition"}}},
        "FabricMisconfigured", NO_LINKS, "",
    ),
    "route": (
        {"fabric": {"health": {"route_unhealthy": True}}}, "FabricRouteUnhealthy", NO_LINKS, "",
    ),
    "slow": ({"fabric": {"health": {"degraded_bandwidth": True}}}, "FabricDegraded", NO_SPEED, ""),
    "route recovery": ({"fabric": {"health": {"route_recovery": True}}}, RECOVERY, ALL, ""),
    "timeout recovery": (
        {"fabric": {"health": {"access_timeout_recovery": True}}}, RECOVERY, ALL, "",
    ),
    "lost": ({"failure": {"mode": "lost"}}, "Lost", NOBODY, "Lost"),
    "off the bus": (
        {"failure": {"mode": "fallen_off_bus", "xid": {"code": 79}}},
        "Lost, Xid79", NOBODY, "Lost, Xid79",
    ),
    "row": ({"remapped_rows": {"pending": True}}, "RowRemapPending", ALL, "RowRemapPending"),
    "bad row": (
        {"remapped_rows": {"failure_occurred": True}}, "RowRemapFailed", NOBODY, "RowRemapFailed",
    ),
    "sram": ({"ecc": {"sram": {"threshold_exceeded": True}}}, "SramThresholdExceeded", ALL, ""),
    # In this mode of the mock a row fails to be remapped, too.
    "uncontained": (
        failing(95), "RowRemapFailed, Xid95", NOBODY, "RowRemapFailed, Xid95",
    ),
    "of the program": (failing(13), "RowRemapFailed", NOBODY, "RowRemapFailed"),
}  # fmt: skip


def passing(record: Record) -> set[str]:
    """The pods that pass filter on an empty node with this record."""
    info = with_record(NodeInfo(record.topology.name), record.topology, record.report, "")
    return {name for name, each in WHOLE.items() if not decide(info, each, Settings()).rejection}


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "message", "passes", "after"),
    [pytest.param(*row, id=name.replace(" ", "-")) for name, row in FAULTS.items()],
)
def test_a_fault_and_what_follows(
    fault: Mapping[str, Any], message: str, passes: set[str], after: str, tmp_path: Path
) -> None:
    with playing("h100", tmp_path) as node:
        assert passing(node.until({})) == ALL
        node.mock.has({3: fault})
        assert passing(node.until({3: message})) == passes
        node.mock.has({4: {"remapped_rows": {"pending": True}}})
        afterwards = {3: after} if after else {}
        node.until({**afterwards, 4: "RowRemapPending"})
