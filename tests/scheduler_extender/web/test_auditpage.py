"""The page of ``gpu-topology audit --html``."""

from pathlib import Path

from scheduler_extender.cli import main
from tests.commands import asked


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
