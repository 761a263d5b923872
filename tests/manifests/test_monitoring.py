"""The alerts: they speak of metrics that there are, and each has its section among the runbooks."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.serving import in_memory
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from tests.manifests.building import AGENT_NAME, objects, the
from tests.test_docs import anchors

ROOT = Path(__file__).parents[2]
RULES = ROOT / "manifests" / "monitoring" / "rules.yaml"
RUNBOOKS = ROOT / "docs" / "operate" / "alerts.md"
SUFFIXES = ("_bucket", "_sum", "_count")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    return group["rules"]  # type: ignore[no-any-return]


def named() -> set[str]:
    """The metrics of docs/reference/metrics.md, which a test holds to the registry."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    return set(re.findall(r"^\|`(gpu_topology_[a-z_]+)[`{]", page, re.MULTILINE))


def label_values() -> dict[str, set[str]]:
    """Of a service over a node: the values of each label, by metric and label."""
    service = in_memory(Cache(time.monotonic, Settings()))
    found: dict[str, set[str]] = {}
    for family in service.metrics.registry.collect():
        for sample in family.samples:
            for label, value in sample.labels.items():
                found.setdefault(f"{sample.name} {label}", set()).add(value)
    return found


def test_labels_have_the_values_that_alerts_look_for() -> None:
    known, looked_for = label_values(), 0
    for rule in rules():
        for name, matchers in re.findall(r"(gpu_topology_[a-z_]+)\{([^}]*)\}", rule["expr"]):
            for label, values in re.findall(r'([a-z]+)=~?"([^"]*)"', matchers):
                if label in ("code", "verb"):  # shown once somebody has asked
                    continue
                looked_for += 1
                assert set(values.split("|")) <= known[f"{name} {label}"], rule["alert"]
    assert looked_for > 5


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert(rule: dict[str, Any]) -> None:
    used = set(re.findall(r"gpu_topology_[a-z_]+", rule["expr"]))
    for suffix in SUFFIXES:
        used = {name.removesuffix(suffix) for name in used}
    assert used, "it says nothing about us"
    assert used <= named()
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert ROOT / page == RUNBOOKS
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(RUNBOOKS)


@pytest.mark.parametrize(
    "path", sorted(RULES.parent.glob("dashboards/*.json")), ids=lambda p: p.stem
)
def test_a_dashboard(path: Path) -> None:
    board = json.loads(path.read_text())
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(set(places)) == len(places) > 8
    for panel in board["panels"]:
        assert panel["title"]
        for target in panel["targets"]:
            used = set(re.findall(r"gpu_topology_[a-z_]+", target["expr"]))
            used = {name.removesuffix("_bucket") for name in used}
            assert used <= named()
            assert used or "process_" in target["expr"]
            assert target["datasource"]["uid"] == "${datasource}"
            named_here = len(re.findall(r"\b(?:gpu_topology|process)_[a-z_]+", target["expr"]))
            assert named_here == target["expr"].count('{job=~"$job",cluster="$cluster"')
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["datasource", "cluster", "job"]


def test_prometheus_finds_the_extender() -> None:
    added = {o["kind"]: o for o in objects(RULES.parent) if o["metadata"]["name"] != AGENT_NAME}
    service = the("Service", "gpu-topology-metrics")
    spec = added["ServiceMonitor"]["spec"]
    found = [
        o["metadata"]["name"]
        for o in objects()
        if o["kind"] == "Service"
        and spec["selector"]["matchLabels"].items() <= o["metadata"]["labels"].items()
    ]
    assert found == ["gpu-topology-metrics"]
    (endpoint,) = spec["endpoints"]
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    assert not endpoint.keys() & {"scheme", "bearerTokenFile", "tlsConfig"}, "it is plain HTTP"


def test_no_runbook_is_left_over() -> None:
    agents = yaml.safe_load((RULES.parent / "agent" / "rules.yaml").read_text())
    (of_agents,) = agents["spec"]["groups"]
    alerts = {rule["alert"].lower() for rule in [*rules(), *of_agents["rules"]]}
    assert {name for name in anchors(RUNBOOKS) if name.startswith("gputopology")} == alerts


TESTS = """
rule_files: [rules.yaml]
evaluation_interval: 15s
tests:
- interval: 15s
  input_series:
  - series: 'gpu_topology_leader_term{instance="a"}'
    values: '1+0x20 0+0x20'
  - series: 'gpu_topology_leader_term{instance="b"}'
    values: '0+0x40'
  - series: 'gpu_topology_mispredictions_total{kind="promise-broken"}'
    values: '0+0x30 1+0x10'
  - series: 'gpu_topology_nodes{state="stale"}'
    values: '3+0x60'
  - series: 'gpu_topology_gpus{state="stranded",instance="a"}'
    values: '6+0x200'
  - series: 'gpu_topology_gpus{state="free",instance="a"}'
    values: '2+0x200'
  - series: 'gpu_topology_waiting_pods{reason="busy",instance="a"}'
    values: '1+0x200'
  - series: 'gpu_topology_build_info{instance="a"}'
    values: '1+0x20 stale'
  alert_rule_test:
  - {eval_time: 0m, alertname: GpuTopologyNotScraped}
  - eval_time: 25m
    alertname: GpuTopologyNotScraped
    exp_alerts:
    - exp_labels: {severity: warning}
      exp_annotations:
        summary: Prometheus sees no extender, so no other alert about it can fire
        runbook: docs/operate/alerts.md#gputopologynotscraped
  - {eval_time: 4m, alertname: GpuTopologyNoLeader}
  - eval_time: 6m
    alertname: GpuTopologyNoLeader
    exp_alerts:
    - exp_labels: {severity: critical}
      exp_annotations: &gone
        summary: No replica of the extender leads, so GPU pods are not placed
        runbook: docs/operate/alerts.md#gputopologynoleader
  - eval_time: 25m # the replicas are gone
    alertname: GpuTopologyNoLeader
    exp_alerts: [{exp_labels: {severity: critical}, exp_annotations: *gone}]
  - {eval_time: 90m, alertname: GpuTopologyNoLeader} # nobody scrapes: the other alert says so
  - eval_time: 8m
    alertname: GpuTopologyPromiseBroken
    exp_alerts:
    - exp_labels: {severity: critical, kind: promise-broken}
      exp_annotations:
        summary: A pod got GPUs that do not meet what it requires
        runbook: docs/operate/alerts.md#gputopologypromisebroken
  - {eval_time: 5m, alertname: GpuTopologyReportsStale}
  - eval_time: 11m
    alertname: GpuTopologyReportsStale
    exp_alerts:
    - exp_labels: {severity: warning}
      exp_annotations:
        summary: 3 nodes have not reported their GPUs
        runbook: docs/operate/alerts.md#gputopologyreportsstale
  - eval_time: 31m
    alertname: GpuTopologyFragmented
    exp_alerts:
    - exp_labels: {severity: warning}
      exp_annotations:
        summary: Pods wait, and more than half of the free GPUs have no NVLink to another free one
        runbook: docs/operate/alerts.md#gputopologyfragmented
"""


def test_prometheus_own_tool_takes_the_rules(tmp_path: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool on the PATH (Debian's package prometheus has it)")
    spec = yaml.safe_load(RULES.read_text())["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "tests.yaml").write_text(TESTS)
    exprs = [
        {"record": "x", "expr": target["expr"]}
        for path in RULES.parent.glob("dashboards/*.json")
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    ]
    (tmp_path / "boards.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": f"g{n}", "rules": [x]} for n, x in enumerate(exprs)]})
    )
    for words in (["check", "rules", "rules.yaml", "boards.yaml"], ["test", "rules", "tests.yaml"]):
        done = subprocess.run([tool, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
