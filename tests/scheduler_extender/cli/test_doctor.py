"""``gpu-topology doctor`` as a command: its text, its data, its exit codes and what it refuses."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import refused
from tests.fakes.apiserver import FakeApiServer
from tests.installation import LEASE
from tests.scheduler_extender.fakeinstallation import Site

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with FakeApiServer() as fake:
        yield Site(fake, tmp_path)


def test_as_text(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # more than the path of a folder of pytest's
    site.remove(LEASE)
    done = site.doctor()
    assert (done.returncode, done.stderr) == (1, "")
    assert re.sub(r"\d+ d\n", "364 d\n", done.stdout).startswith(
        "check                   finding\n"
        "resource      ok        the CustomResourceDefinition is from this release\n"
        "policies      ok        8 policies and bindings are from this release\n"
        "extender      fail      no replica leads: no replica holds the Lease gpu-topology\n"
        "                        → look at its pods and their logs\n"
        "                          docs/operate/alerts.md#gputopologynoleader\n"
        "certificates  ok        2 certificates; the first one expires in 364 d\n"
        "scheduler     not seen  its configuration: the file"
    )
    assert done.stdout.endswith("\n9 ok, 1 fail, 1 not seen\n"), done.stdout


def test_as_data_of_an_installation_that_is_well(site: Site) -> None:
    done = site.doctor("--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
    lines = json.loads(done.stdout)["lines"]
    first = {"check": "resource", "state": "ok"}
    assert lines[0] == {**first, "text": "the CustomResourceDefinition is from this release"}
    (dark,) = (line for line in lines if line["state"] != "ok")
    assert (dark["check"], dark["state"]) == ("scheduler", "not seen")
    assert "--scheduler-config FILE" in dark["remedy"]
    assert dark["page"] == "docs/install/kubeadm.md#4-configure-kube-scheduler"


@pytest.mark.parametrize("colours", ["FORCE_COLOR", "NO_COLOR"])
@pytest.mark.parametrize("columns", [44, 80])
def test_nothing_is_wider_than_the_terminal(
    site: Site, columns: int, colours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv(colours, "1")
    done = site.doctor("--scheduler-config", site.file)
    assert done.returncode == 1
    assert bool(ANSI.search(done.stdout)) == (colours == "FORCE_COLOR")
    assert max(map(len, ANSI.sub("", done.stdout).splitlines())) <= columns


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            ("-o", "xml"),
            "--output: allowed are table, wide, json, yaml, name, not 'xml'",
            id="form",
        ),
        pytest.param(("--scheduler-config", "/no"), "/no: No such file", id="no-file"),
        pytest.param(("--kubeconfig", "/no"), "/no: there is no such file", id="kubeconfig"),
    ],
)
def test_wrong_input_is_one_line(site: Site, words: tuple[str, ...], message: str) -> None:
    done = site.doctor(*words) if "--kubeconfig" not in words else site.command(*words)
    refused(done, message)


@pytest.mark.parametrize("status", [401, 500])
def test_an_api_server_that_does_not_answer_is_no_finding(site: Site, status: int) -> None:
    site.fake.refuse(status, None)
    refused(site.doctor(), str(status))
