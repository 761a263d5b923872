"""``gpu-topology install`` in a folder that stands for a node's ``/``."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from scheduler_extender.cli import install, main
from scheduler_extender.cli.install import NO_CONNECTION
from scheduler_extender.installing import k3s, staticpod
from tests.commands import ROOT, Done, asked, refused

SAMPLES = ROOT / "tests" / "scheduler_extender" / "installing"
KUBEADM = SAMPLES / "kube-scheduler.yaml"
FOREIGN = SAMPLES / "foreign.yaml"
ADDRESS = "10.96.7.8"
Tree = dict[str, tuple[int, bytes]]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    assert asked(main, "certificates", "--output", folder).returncode == 0
    return folder


@pytest.fixture
def kubeadm(tmp_path: Path) -> Path:
    """The files of a control-plane node that kubeadm has made."""
    return placed(tmp_path / "kubeadm", staticpod.PATH, KUBEADM.read_text())


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """The files of a k3s server that has no configuration of its own."""
    return placed(tmp_path / "k3s", "/etc/rancher/k3s/k3s.yaml", "kind: Config\n")


def placed(root: Path, path: str, text: str) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o600)
    return root


def started_with(root: Path, config: str) -> Path:
    """The static pod starts kube-scheduler with this file of a folder of its own."""
    text = KUBEADM.read_text().replace("--leader-elect=true", f"--config={config}")
    mount = "    - {mountPath: /etc/kubernetes/own, name: own}\n"
    text = text.replace("    volumeMounts:\n", f"    volumeMounts:\n{mount}")
    volume = "  - {name: own, hostPath: {path: /etc/kubernetes/own}}\n"
    return placed(root, staticpod.PATH, text.replace("  volumes:\n", f"  volumes:\n{volume}"))


def tree(root: Path) -> Tree:
    """Every file: its mode and content."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return {
        f"/{path.relative_to(root)}": (path.stat().st_mode & 0o777, path.read_bytes())
        for path in files
    }


def installed(kind: str, root: Path, tls: Path, *words: object, address: str = ADDRESS) -> Done:
    done = asked(main, "install", kind, "--root", root, "--tls", tls, "--address", address, *words)
    answer = [line for line in done.stderr.splitlines() if not line.endswith(NO_CONNECTION)]
    assert (done.returncode, answer) == (0, [])
    return done


def removed(kind: str, root: Path) -> Done:
    done = asked(main, "install", kind, "--root", root, "--remove")
    assert (done.returncode, done.stderr) == (0, "")
    return done


def test_a_dry_run_shows_all_but_secrets_and_changes_nothing(kubeadm: Path, tls: Path) -> None:
    before = tree(kubeadm)
    shown = installed("kubeadm", kubeadm, tls, "--dry-run").stdout
    assert tree(kubeadm) == before
    assert f"+    - --config={staticpod.CONFIG}\n" in shown
    assert f"+- urlPrefix: https://{ADDRESS}:8888/scheduler\n" in shown
    assert f"{staticpod.FOLDER}/scheduler.key: new; a secret, so its content" in shown
    assert "BEGIN" not in shown


def test_kubeadm_and_back(kubeadm: Path, tls: Path) -> None:
    before = tree(kubeadm)
    message = installed("kubeadm", kubeadm, tls).stdout
    now = tree(kubeadm)
    assert {path: mode for path, (mode, _) in now.items()} == {
        staticpod.PATH: 0o600,
        staticpod.CONFIG: 0o644,
        f"{staticpod.FOLDER}/ca.crt": 0o644,
        f"{staticpod.FOLDER}/scheduler.crt": 0o644,
        f"{staticpod.FOLDER}/scheduler.key": 0o600,
        f"{staticpod.FOLDER}/before{staticpod.PATH}": 0o600,
    }
    for path in set(now) - {f"{staticpod.FOLDER}/before{staticpod.PATH}"}:
        assert f"{path}: " in message
    assert now[f"{staticpod.FOLDER}/before{staticpod.PATH}"] == before[staticpod.PATH]
    assert "The kubelet now restarts kube-scheduler." in message

    assert installed("kubeadm", kubeadm, tls).stdout == "nothing to change\n"
    assert tree(kubeadm) == now

    removed("kubeadm", kubeadm)
    after = tree(kubeadm)
    assert after.pop(f"{staticpod.FOLDER}/before{staticpod.PATH}") == before[staticpod.PATH]
    assert after == before
    assert removed("kubeadm", kubeadm).stdout == "nothing to change\n"


def test_certificates_that_a_killed_removal_left_stay_private(kubeadm: Path, tls: Path) -> None:
    installed("kubeadm", kubeadm, tls)
    left = kubeadm / staticpod.FOLDER.lstrip("/") / "scheduler.crt"
    text = left.read_text()
    removed("kubeadm", kubeadm)
    left.write_text(text)
    message = removed("kubeadm", kubeadm).stdout
    assert message.endswith("crt: removed\nkube-scheduler no longer reads these files.\n"), message


def test_the_static_pod_changes_whenever_the_scheduler_has_to_read_anew(
    kubeadm: Path, tls: Path, tmp_path: Path
) -> None:
    def pod() -> bytes:
        return tree(kubeadm)[staticpod.PATH][1]

    installed("kubeadm", kubeadm, tls)
    first = pod()
    installed("kubeadm", kubeadm, tls, address="10.96.7.9")
    second = pod()
    assert second != first
    renewed = tmp_path / "renewed"
    shutil.copytree(tls, renewed)
    words = ("--output", renewed, "--ca", renewed)
    assert asked(main, "certificates", *words).returncode == 0
    message = installed("kubeadm", kubeadm, renewed, address="10.96.7.9").stdout
    assert "scheduler.crt: changed" in message
    assert message.endswith("kube-scheduler reads the new files without a restart.\n")
    assert pod() == second  # kube-scheduler reads these two by itself
    other = tmp_path / "other"
    assert asked(main, "certificates", "--output", other).returncode == 0
    installed("kubeadm", kubeadm, other, address="10.96.7.9")
    assert pod() != second


@pytest.mark.parametrize("name", ["config.yaml", "kube-scheduler.yaml"])
def test_a_configuration_that_is_there_is_added_to(kubeadm: Path, tls: Path, name: str) -> None:
    path = f"/etc/kubernetes/own/{name}"
    started_with(kubeadm, path)
    placed(kubeadm, path, FOREIGN.read_text())
    before = tree(kubeadm)
    installed("kubeadm", kubeadm, tls)
    now = tree(kubeadm)
    assert len(yaml.safe_load(now[path][1])["extenders"]) == 2
    assert staticpod.CONFIG not in now
    assert now[f"{staticpod.FOLDER}/before{path}"][1] == before[path][1]
    installed("kubeadm", kubeadm, tls, address="10.96.7.9")
    assert tree(kubeadm)[f"{staticpod.FOLDER}/before{path}"][1] == before[path][1]
    removed("kubeadm", kubeadm)
    after = tree(kubeadm)
    assert {path: content for path, content in after.items() if "/before/" not in path} == before


HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
JSON = '{"kind": "KubeSchedulerConfiguration", "apiVersion": "kubescheduler.config.k8s.io/v1"'


OWN = "/etc/kubernetes/own/config.yaml"


@pytest.fixture
def own(kubeadm: Path) -> Path:
    """A node whose kube-scheduler is started with a configuration of its own, at :data:`OWN`."""
    return started_with(kubeadm, OWN)


@pytest.mark.parametrize("connection", ["", "clientConnection: {qps: 5}\n"])
def test_a_configuration_that_leads_to_no_api_server_is_reported(
    own: Path, tls: Path, connection: str
) -> None:
    placed(own, OWN, HEAD + connection)
    for words in (("--dry-run",), (), ()):  # the last one changes nothing, and tells all the same
        done = installed("kubeadm", own, tls, *words)
        assert done.stderr == f"note: {OWN}: {NO_CONNECTION}\n"
    placed(own, OWN, f"{HEAD}clientConnection: {{kubeconfig: /etc/kubernetes/scheduler.conf}}\n")
    assert installed("kubeadm", own, tls).stderr == ""


def test_a_configuration_that_kube_scheduler_no_longer_reads_is_not_edited(
    own: Path, tls: Path
) -> None:
    placed(own, OWN, FOREIGN.read_text().replace("k8s.io/v1", "k8s.io/v1beta3"))
    before = tree(own)
    words = ("--root", own, "--tls", tls, "--address", ADDRESS)
    refused(
        asked(main, "install", "kubeadm", *words),
        f"{OWN}: apiVersion: since Kubernetes 1.29 kube-scheduler reads only "
        "kubescheduler.config.k8s.io/v1, not 'kubescheduler.config.k8s.io/v1beta3'",
    )
    assert tree(own) == before


@pytest.mark.parametrize("mode", [0o666, 0o640, 0o400])
def test_an_existing_key_stays_readable_to_its_owner_alone(
    kubeadm: Path, tls: Path, mode: int
) -> None:
    key = kubeadm / staticpod.FOLDER.lstrip("/") / "scheduler.key"
    for text in ("another key", (tls / "scheduler.key").read_text()):
        placed(kubeadm, f"{staticpod.FOLDER}/scheduler.key", text)
        key.chmod(mode)
        installed("kubeadm", kubeadm, tls)
        assert key.stat().st_mode & 0o777 == mode & 0o600
        assert key.read_bytes() == (tls / "scheduler.key").read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}extenders: [] # none yet\n",
        f"{HEAD}extenders: # none yet\nparallelism: 4\n",
        f"{HEAD}extenders: null",
        f"{HEAD}profiles: [{{schedulerName: a}}]",
        FOREIGN.read_text().replace("\n", "\r\n"),
        f'---\n{JSON}, "extenders": []}}\n---\n',
        f'{JSON}, "extenders": [{{"urlPrefix": "http://x"}}]}}',
        f"{HEAD}x: &x\n- urlPrefix: http://x # theirs\nextenders: *x\n",
    ],
)
@pytest.mark.parametrize("kind", ["kubeadm", "k3s"])
def test_any_text_comes_back_byte_for_byte(kind: str, text: str, tls: Path, tmp_path: Path) -> None:
    path = "/etc/kubernetes/own/own.yaml"
    root = placed(tmp_path / "root", path, "")
    (root / path[1:]).write_bytes(text.encode())
    if kind == "k3s":
        placed(root, k3s.FILE, f"kube-scheduler-arg: config={path}\n")
    else:
        pod = yaml.safe_load(KUBEADM.read_text())
        (container,) = pod["spec"]["containers"]
        container["command"].append(f"--config={path}")
        container["volumeMounts"].append({"name": "own", "mountPath": "/etc/kubernetes/own"})
        pod["spec"]["volumes"].append({"name": "own", "hostPath": {"path": "/etc/kubernetes/own"}})
        whole = yaml.safe_dump(pod, default_flow_style=True).replace("\n", "\r\n") + "# ours\r\n"
        placed(root, staticpod.PATH, "")
        (root / staticpod.PATH[1:]).write_bytes(whole.encode())
    before = tree(root)
    installed(kind, root, tls)
    assert k3s.OURS not in tree(root)
    assert len(yaml.safe_load(tree(root)[path][1])["extenders"]) in (1, 2)
    removed(kind, root)
    after = tree(root)
    assert {path: each for path, each in after.items() if "/before/" not in path} == before


def test_a_comment_of_after_the_installation_stays(kubeadm: Path, tls: Path) -> None:
    installed("kubeadm", kubeadm, tls)
    file = kubeadm / staticpod.PATH[1:]
    file.write_text(file.read_text().replace("spec:\n", "spec: # mind the pods\n"))
    removed("kubeadm", kubeadm)
    assert file.read_text() == KUBEADM.read_text().replace("spec:\n", "spec: # mind the pods\n")


def test_what_was_added_to_our_configuration_stays_and_is_read(kubeadm: Path, tls: Path) -> None:
    installed("kubeadm", kubeadm, tls)
    placed(
        kubeadm, staticpod.CONFIG, tree(kubeadm)[staticpod.CONFIG][1].decode() + "parallelism: 4\n"
    )
    removed("kubeadm", kubeadm)
    after = tree(kubeadm)
    left = yaml.safe_load(after[staticpod.CONFIG][1])
    assert left["parallelism"] == 4
    assert "extenders" not in left
    assert staticpod.read(after[staticpod.PATH][1].decode()).config() == staticpod.CONFIG


def test_what_the_hardened_flags_say_stays_so(kubeadm: Path, tls: Path) -> None:
    """Beside --config kube-scheduler passes over these flags."""
    hard = "    - --profiling=false\n    - --kube-api-qps=70\n    - --leader-elect=true\n"
    text = KUBEADM.read_text()
    placed(kubeadm, staticpod.PATH, text.replace("    - --leader-elect=true\n", hard))
    before = tree(kubeadm)
    installed("kubeadm", kubeadm, tls)
    written = yaml.safe_load(tree(kubeadm)[staticpod.CONFIG][1])
    assert written["enableProfiling"] is False
    assert written["clientConnection"] == {"kubeconfig": staticpod.KUBECONFIG, "qps": 70.0}
    removed("kubeadm", kubeadm)
    after = tree(kubeadm)
    assert {path: each for path, each in after.items() if "/before/" not in path} == before


def test_a_pod_that_is_hardened_afterwards_takes_effect_with_the_next_install(
    kubeadm: Path, tls: Path
) -> None:
    installed("kubeadm", kubeadm, tls)
    pod = tree(kubeadm)[staticpod.PATH][1].decode()
    placed(kubeadm, staticpod.PATH, pod.replace("--leader-elect=true", "--profiling=false"))
    installed("kubeadm", kubeadm, tls)
    assert yaml.safe_load(tree(kubeadm)[staticpod.CONFIG][1])["enableProfiling"] is False
    assert tree(kubeadm)[staticpod.PATH][1].decode() != pod


def test_k3s_and_back(server: Path, tls: Path) -> None:
    before = tree(server)
    message = installed("k3s", server, tls).stdout
    assert message.endswith("Restart k3s now: systemctl restart k3s\n")
    now = tree(server)
    assert now[k3s.OURS][1].decode() == k3s.TEXT
    written = yaml.safe_load(now[k3s.CONFIG][1])
    assert written["clientConnection"] == {
        "kubeconfig": f"{k3s.DATA}/server/cred/scheduler.kubeconfig"
    }
    assert written["enableProfiling"] is False  # as k3s starts its own
    assert written["extenders"][0]["tlsConfig"]["caFile"] == f"{k3s.FOLDER}/ca.crt"
    assert installed("k3s", server, tls).stdout == "nothing to change\n"
    removed("k3s", server)
    assert tree(server) == before


# A copy of the program for each number of writes after which it is killed.
KILLED = f"""\
import os, signal, sys
import {install.__name__}
from scheduler_extender.cli import main
roots = sys.argv.pop(1).split(os.pathsep)
for left, root in enumerate(roots):
    copy = os.fork()
    if copy == 0:
        sys.argv += ["--root", root]
        break
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == -signal.SIGKILL, root
else:
    sys.exit()
def unless_killed(call):
    def do(*words):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*words)
    return do
os.fsync, os.unlink = unless_killed(os.fsync), unless_killed(os.unlink)
main()
"""


@pytest.mark.parametrize("way", ["in", "out"])
@pytest.mark.parametrize("kind", ["kubeadm", "k3s"])
def test_after_a_kill_every_file_is_whole_and_the_next_one_completes_it(
    kind: str, way: str, request: pytest.FixtureRequest, tls: Path, tmp_path: Path
) -> None:
    empty: Path = request.getfixturevalue({"kubeadm": "kubeadm", "k3s": "server"}[kind])
    full = tmp_path / "full"
    shutil.copytree(empty, full)
    installed(kind, full, tls)
    gone = tmp_path / "gone"
    shutil.copytree(full, gone)
    removed(kind, gone)
    start, end = (empty, full) if way == "in" else (full, gone)
    before, after = tree(start), tree(end)
    words = ["--remove"] if way == "out" else ["--tls", str(tls), "--address", ADDRESS]
    steps = sum(before.get(path) != after.get(path) for path in before | after)
    roots = [tmp_path / f"killed-{number}" for number in range(steps)]
    for root in roots:
        shutil.copytree(start, root)
    command = [sys.executable, "-c", KILLED, os.pathsep.join(map(str, roots)), "install", kind]
    subprocess.run([*command, *words], check=True)
    for root in roots:
        for path, found in tree(root).items():
            assert path.endswith(".half") or found in (before.get(path), after.get(path))
        if way == "in":
            installed(kind, root, tls)
        else:
            removed(kind, root)
        assert tree(root) == after


def spoil(path: str, content: bytes) -> Callable[[Path], None]:
    def do(root: Path) -> None:
        placed(root, path, "")
        (root / path.lstrip("/")).write_bytes(content)

    return do


def pipe(root: Path) -> None:
    (root / staticpod.PATH.lstrip("/")).unlink()
    os.mkfifo(root / staticpod.PATH.lstrip("/"))


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (spoil(staticpod.PATH, b"kind: Deployment\n"), "kube-scheduler.yaml: kind: Pod is needed"),
        (spoil(staticpod.PATH, b"a: [\n"), "kube-scheduler.yaml: line 2: not YAML"),
        (spoil(staticpod.PATH, b"a: \xff\n"), "kube-scheduler.yaml: not UTF-8 text"),
        (spoil(staticpod.PATH, b"#" * 2**21), "kube-scheduler.yaml: larger than 1,048,576 bytes"),
        (spoil(staticpod.CONFIG, b"kind: Pod\n"), "config.yaml: kind: KubeSchedulerConfiguration"),
        (spoil(staticpod.CONFIG, b"---\n---\na: 1\n---\nb: 2\n"), "this is 2 documents"),
        (pipe, "kube-scheduler.yaml: this is no regular file"),
        (lambda root: shutil.rmtree(root / "etc"), "kubeadm runs no kube-scheduler here"),
        (
            spoil(staticpod.FOLDER, b"in the way"),
            "kube-scheduler-config.yaml: Not a directory",
        ),
    ],
    ids=["kind", "YAML", "UTF-8", "large", "config", "documents", "pipe", "none", "folder"],
)
def test_bad_files_are_one_line_and_nothing_changes(
    kubeadm: Path, tls: Path, spoiled: Callable[[Path], None], message: str
) -> None:
    spoiled(kubeadm)
    before = tree(kubeadm)
    words = ("--root", kubeadm, "--tls", tls, "--address", ADDRESS)
    refused(asked(main, "install", "kubeadm", *words), message)
    assert tree(kubeadm) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("k0s",), "KIND: allowed are kubeadm, k3s, not 'k0s'"),
        (("RKE2",), "elsewhere, let the chart run a second kube-scheduler instead"),
        (("talos",), "--set scheduler.enabled=true (docs/install/second-scheduler.md)"),
        (("kubeadm",), "--address: an IP address or a DNS name is needed"),
        (("kubeadm", "--address", "http://x"), "--address: an IP address or a DNS name is needed"),
        (("kubeadm", "--address", "None"), "--address: an IP address or a DNS name is needed"),
        (("kubeadm", "--address", "*.x"), "--address: an IP address or a DNS name is needed"),
        (("kubeadm", "--address", "256.1.1.1"), "a DNS name is needed, not '256.1.1.1'"),
        (("kubeadm", "--address", "10.0.0"), "a DNS name is needed, not '10.0.0'"),
        (("kubeadm", "--address", "fe80::1%eth0"), "a DNS name is needed, not 'fe80::1%eth0'"),
        (("kubeadm", "--address", "x"), "--tls: needed is a folder with ca.crt"),
        (("kubeadm", "--address", "x", "--tls", "/nope"), "/nope/ca.crt: No such file"),
        (("kubeadm", "--address", "x", "--namespace", "A"), "--namespace: 'A' is not a valid name"),
        (("kubeadm", "--root", "/nope"), "--root: /nope: no such folder"),
        (("k3s", "--address", "x"), "/etc/rancher/k3s has no files: no k3s server runs here"),
    ],
)
def test_bad_words_are_one_line(kubeadm: Path, words: tuple[str, ...], message: str) -> None:
    root = () if "--root" in words else ("--root", kubeadm)
    refused(asked(main, "install", *words, *root), message)


def test_a_key_of_another_certificate_is_refused(kubeadm: Path, tls: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    shutil.copytree(tls, wrong)
    shutil.copy(tls / "extender.key", wrong / "scheduler.key")
    words = ("--root", kubeadm, "--tls", wrong, "--address", ADDRESS)
    done = asked(main, "install", "kubeadm", *words)
    names = f"{wrong}/scheduler.crt, {wrong}/scheduler.key"
    refused(done, f"--tls: {names}: the key does not belong to the certificate")


def test_a_file_that_k3s_cannot_read_is_one_line(server: Path, tls: Path) -> None:
    placed(server, k3s.FILE, "a: b\n\tc: d\n")
    words = ("--root", server, "--tls", tls, "--address", ADDRESS)
    refused(asked(main, "install", "k3s", *words), f"{k3s.FILE}: line 2: not YAML")


def test_the_data_folder_and_the_flags_of_k3s_are_respected(server: Path, tls: Path) -> None:
    message = "data-dir: /data\nkube-scheduler-arg: [profiling, kube-api-burst=90]\n"
    placed(server, k3s.FILE, message)
    installed("k3s", server, tls)
    written = yaml.safe_load(tree(server)[k3s.CONFIG][1])
    kubeconfig = "/data/server/cred/scheduler.kubeconfig"
    assert written["clientConnection"] == {"kubeconfig": kubeconfig, "burst": 90}
    assert written["enableProfiling"] is True


SERVICE = "[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'{word}' \\\n\n"


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        ("system/k3s.service", SERVICE, "--kube-scheduler-arg=config=/own.yaml"),
        ("system/k3s.service", SERVICE.replace("'", ""), "--kube-scheduler-arg v=2"),
        ("system/k3s.service", SERVICE, "--config=/own.yaml"),
        ("system/k3s.service", SERVICE.replace("'", ""), "-d /data"),
        ("system/k3s.service.d/own.conf", SERVICE, "--data-dir=/data"),
        ("system/k3s.service.d/own.conf", 'Environment="{word}"\n', "K3S_DATA_DIR=/data"),
        ("system/k3s.service.env", "{word}\n", "K3S_CONFIG_FILE='/own.yaml'"),
    ],
)
def test_settings_of_k3s_outside_its_files_are_one_line(
    server: Path, tls: Path, path: str, text: str, name: str
) -> None:
    path = f"/etc/systemd/{path}"
    placed(server, path, text.format(word=name))
    words = ("--root", server, "--tls", tls, "--address", ADDRESS)
    flag = name.replace("=", " ").split()[0]
    message = f"{path}: {flag}: this command reads and writes only {k3s.FILE}; move the setting"
    refused(asked(main, "install", "k3s", *words), message)
    assert asked(main, "install", "k3s", "--root", server, "--remove").returncode == 0


def test_another_service_of_k3s_is_none_of_our_business(server: Path, tls: Path) -> None:
    usual = f"--config={k3s.FILE}' '--data-dir={k3s.DATA}' '--disable=traefik"
    text = SERVICE.format(word=usual) + "# --config=/x\nExecStartPre=/bin/sh -xc 'a'\n"
    placed(server, "/etc/systemd/system/k3s.service", text)
    placed(server, "/etc/systemd/system/k3s.service.env", "K3S_TOKEN=--config=/x\n")
    installed("k3s", server, tls)


def test_a_later_file_of_k3s_that_takes_the_flag_away_is_named(server: Path, tls: Path) -> None:
    placed(server, f"{k3s.FILES}/z.yaml", "kube-scheduler-arg: [v=2]\n")
    before = tree(server)
    words = ("--root", server, "--tls", tls, "--address", ADDRESS)
    refused(asked(main, "install", "k3s", *words), "write kube-scheduler-arg+ in the later file")
    assert tree(server) == before
