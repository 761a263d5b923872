"""The agents' alerts and dashboard: they speak of metrics that there are, and Prometheus' own tool
takes them."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.building import ROOT, objects, the
from tests.test_docs import anchors
from tests.topology.agent.test_metrics import with_everything

FOLDER = ROOT / "manifests" / "monitoring" / "agent"
BOARD = json.loads((FOLDER / "dashboard.json").read_text())
METRIC = re.compile(r"gpu_topology_[a-z_]+")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]["groups"]
    return group["rules"]  # type: ignore[no-any-return]


def expressions() -> list[str]:
    """Those of the dashboard, with a node chosen."""
    found = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    return [expr.replace("$node", "train-.*") for expr in found]


def samples() -> set[str]:
    """The names under which Prometheus stores what the agent tells."""
    found = set()
    for family in with_everything().registry.collect():
        found |= {sample.name for sample in family.samples}
        # A gauge of which no GPU has a value yet is told without samples.
        found |= {family.name} if family.type == "gauge" else {f"{family.name}_total"}
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert(rule: dict[str, Any]) -> None:
    # The extender's metric says that there are agents.
    used = set(METRIC.findall(rule["expr"])) - {"gpu_topology_nodes"}
    assert used
    assert used <= samples()
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(ROOT / page)
    joined = re.findall(r"\b(?:on|by|without|ignoring) \(([^)]*)\)", rule["expr"])
    assert all("cluster" in labels for labels in joined), "clusters may have pods of one name"


def test_the_dashboard() -> None:
    places = [tuple(panel["gridPos"].values()) for panel in BOARD["panels"]]
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(set(places)) == len(places)
    assert {"datasource", "cluster", "job", "node"} == {
        found["name"] for found in BOARD["templating"]["list"]
    }
    for panel in BOARD["panels"]:
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    for expr in expressions():
        assert METRIC.search(expr)
        assert set(METRIC.findall(expr)) <= samples()
        assert len(METRIC.findall(expr)) == expr.count('{job=~"$job",cluster="$cluster"')


def test_prometheus_finds_the_agents() -> None:
    template = the("DaemonSet", "gpu-topology-agent")["spec"]["template"]
    pod = template["metadata"]["labels"].items()
    (port,) = template["spec"]["containers"][0]["ports"]
    added = {o["kind"]: o for o in objects(FOLDER)}
    assert added["Service"]["spec"]["selector"].items() <= pod
    assert added["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert added["Service"]["spec"]["publishNotReadyAddresses"], "one that is not ready tells why"
    assert added["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= pod
    (endpoint,) = added["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    assert endpoint["honorLabels"], "else the pod that holds a GPU is renamed"


TESTS = """
rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
  - series: 'gpu_topology_agent_gpu_utilization_ratio{gpu="0",pod="idle"}'
    values: '0x120'
  - series: 'gpu_topology_agent_gpu_utilization_ratio{gpu="1",pod="at-times"}'
    values: '0x9 0.5 0x9 0.5 0x9 0.5 0x9 0.5 0x9 0.5 0x9 0.5 0x9 0.5 0x9 0.5 0x9 0.5'
  - series: 'gpu_topology_agent_idle_since_timestamp_seconds{namespace="",pod="idle"}'
    values: '0x120'
  - series: 'gpu_topology_agent_idle_since_timestamp_seconds{namespace="ml",pod="slice"}'
    values: '_x9 0x80 4800x20'
  - series: 'gpu_topology_agent_gpu_utilization_ratio{gpu="2",pod=""}'
    values: '0x120'
  - series: 'gpu_topology_agent_nvlinks_expected{gpu="0",uuid="GPU-0"}'
    values: '6x120'
  - series: 'gpu_topology_agent_nvlinks_active{gpu="0",uuid="GPU-0"}'
    values: '6x10 5x100'
  - series: 'gpu_topology_agent_fabric_ready{gpu="3",uuid="GPU-3"}'
    values: '0x60'
  - series: 'gpu_topology_agent_report_age_seconds{node="a"}'
    values: '0 30 60 0 30 60 0 60 120 180 240 300 360'
  - series: 'gpu_topology_agent_topology_manager_policy_unknown{node="a"}'
    values: '1x60'
  - series: 'gpu_topology_nodes{state="ready",instance="x"}'
    values: '3x60'
  - series: 'gpu_topology_agent_build_info{node="a"}'
    values: '1x20'
  alert_rule_test:
  - {eval_time: 40m, alertname: GpuTopologyGpuIdle}
  - eval_time: 65m
    alertname: GpuTopologyGpuIdle
    exp_alerts:
    - exp_labels: {severity: info, gpu: "0", pod: idle}
      exp_annotations:
        summary: A pod has held a GPU for an hour without using it
        runbook: docs/operate/alerts.md#gputopologygpuidle
    - exp_labels: {severity: info, namespace: ml, pod: slice}
      exp_annotations:
        summary: A pod has held a GPU for an hour without using it
        runbook: docs/operate/alerts.md#gputopologygpuidle
  - eval_time: 95m
    alertname: GpuTopologyGpuIdle
    exp_alerts:
    - exp_labels: {severity: info, gpu: "0", pod: idle}
      exp_annotations:
        summary: A pod has held a GPU for an hour without using it
        runbook: docs/operate/alerts.md#gputopologygpuidle
  - {eval_time: 10m, alertname: GpuTopologyLinkDown}
  - eval_time: 15m
    alertname: GpuTopologyLinkDown
    exp_alerts:
    - exp_labels: {severity: warning, gpu: "0", uuid: GPU-0}
      exp_annotations:
        summary: NVLinks of a GPU are down
        runbook: docs/operate/alerts.md#gputopologylinkdown
  - {eval_time: 4m, alertname: GpuTopologyFabricNotReady}
  - eval_time: 8m
    alertname: GpuTopologyFabricNotReady
    exp_alerts:
    - exp_labels: {severity: warning, gpu: "3", uuid: GPU-3}
      exp_annotations:
        summary: A GPU has no NVLinks through its switch
        runbook: docs/operate/alerts.md#gputopologyfabricnotready
  - {eval_time: 8m, alertname: GpuTopologyAgentReportOld}
  - eval_time: 11m
    alertname: GpuTopologyAgentReportOld
    exp_alerts:
    - exp_labels: {severity: warning, node: a}
      exp_annotations:
        summary: An agent cannot write the report of its node
        runbook: docs/operate/alerts.md#gputopologyagentreportold
  - {eval_time: 30m, alertname: GpuTopologyAgentsNotScraped}
  - eval_time: 45m
    alertname: GpuTopologyAgentsNotScraped
    exp_alerts:
    - exp_labels: {severity: warning}
      exp_annotations:
        summary: Prometheus sees no agent, so no other alert about nodes can fire
        runbook: docs/operate/alerts.md#gputopologyagentsnotscraped
  - {eval_time: 10m, alertname: GpuTopologyManagerUnknown}
  - eval_time: 20m
    alertname: GpuTopologyManagerUnknown
    exp_alerts:
    - exp_labels: {severity: warning, node: a}
      exp_annotations:
        summary: The Topology Manager policy of a node is unknown
        runbook: docs/operate/alerts.md#gputopologymanagerunknown
"""


def test_prometheus_own_tool_takes_the_rules(tmp_path: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool on the PATH (Debian's package prometheus has it)")
    spec = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]
    records = [{"record": f"x:{n}", "expr": expr} for n, expr in enumerate(expressions())]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "board.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "board", "rules": records}]})
    )
    (tmp_path / "tests.yaml").write_text(TESTS)
    for words in (["check", "rules", "rules.yaml", "board.yaml"], ["test", "rules", "tests.yaml"]):
        done = subprocess.run([tool, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
