"""The page of ``gpu-topology audit --html``."""

from pathlib import Path

from scheduler_extender.cli import main
from tests.commands import asked
from tests.scheduler_extender.auditing import PAIRS, node, text
from topology.core.devices import NodeName
from topology.machines import machine


def test_the_page_has_every_figure_and_escapes_names(tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    source = tmp_path / "cluster.yaml"
    evil = Path("examples/clusters/audit.yaml").read_text().replace("pod: sweep", "pod: '<i>&x'")
    source.write_text(evil.replace("{name: sweep, namespace: team-a, uid: sweep}", "{name: other}"))
    done = asked(main, "audit", "--cluster", source, "--html", page)
    assert done.returncode == 0, done.stderr
    html = page.read_text()
    assert "&lt;i&gt;&amp;x" in html
    assert "<i>" not in html
    assert "Kubelets refused 3 pods with GPUs on 1 node" in html
    assert html.count("<figure>") == 2
    assert "http" not in html.replace("http-equiv", ""), "it loads nothing"


def test_a_sick_gpu_of_a_pod_is_not_in_use(tmp_path: Path) -> None:
    record, *pods = node(PAIRS, "crossed", {"across": (0, 2)})
    sick = machine(PAIRS).topology(NodeName("crossed")).gpus[2]
    record["status"]["health"] = [{"uuid": sick.uuid, "healthy": False, "reason": "Xid79"}]
    (tmp_path / "cluster.yaml").write_text(text([record, *pods]))
    page = tmp_path / "audit.html"
    done = asked(main, "audit", "--cluster", tmp_path / "cluster.yaml", "--html", page)
    assert done.returncode == 0, done.stderr
    assert 'aria-label="0 in use, 1 in use, far apart, 2 free, ' in page.read_text()
