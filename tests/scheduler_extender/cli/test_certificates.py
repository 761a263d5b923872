"""``gpu-topology certificates``: its files, its Secret, and whom they let in."""

import base64
import importlib
import shutil
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import trustme
import yaml
from cryptography import x509

from scheduler_extender.certificateauthority import Authority, Use
from scheduler_extender.cli import main
from scheduler_extender.http.certificates import Tls
from scheduler_extender.http.servers import Addresses
from tests.commands import Done, asked, refused
from tests.manifests.building import the
from tests.nodes import switched
from tests.scheduler_extender.serving import running
from tests.waiting import PATIENCE

COMMAND = importlib.import_module("scheduler_extender.cli.certificates")
NOW = datetime(2026, 11, 22, tzinfo=UTC)
FILES = {"ca.crt", "ca.key", "extender.crt", "extender.key", "scheduler.crt", "scheduler.key"}


def made(*words: object) -> Done:
    done = asked(main, "certificates", *words)
    assert done.returncode == 0, done.stderr
    return done


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(path: Path) -> set[str]:
    found = certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    dns = found.get_values_for_type(x509.DNSName)
    return {*dns, *map(str, found.get_values_for_type(x509.IPAddress))}


def shows(folder: Path, which: str) -> ssl.SSLContext:
    """A client that trusts the folder's authority and shows one of its certificates."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / f"{which}.crt", folder / f"{which}.key")
    return context


def test_only_kube_scheduler_gets_in_with_what_it_makes(tmp_path: Path) -> None:
    made("--output", tmp_path / "tls")
    folder = tmp_path / "tls"
    tls = Tls(
        folder / "extender.crt",
        folder / "extender.key",
        folder / "ca.crt",
        frozenset({"kube-scheduler"}),
    )
    with running(switched(), where=Addresses(tls=tls)) as service:
        for host in ("127.0.0.1", "localhost"):
            url = f"https://{host}:{service.ports[0]}/healthz"
            answer = httpx.get(url, verify=shows(folder, "scheduler"), timeout=PATIENCE)
            assert answer.status_code == 200
        with pytest.raises(httpx.TransportError):  # it is for serving, not for asking
            httpx.get(url, verify=shows(folder, "extender"), timeout=PATIENCE)


def test_every_name_of_the_service_is_in_the_certificate(tmp_path: Path) -> None:
    made("--output", tmp_path, "--name", "10.96.3.4", "--name", "gpu.example.com")
    expected = {"localhost", "127.0.0.1", "::1", "10.96.3.4", "gpu.example.com"}
    meta = the("Service", "gpu-topology")["metadata"]
    host = f"{meta['name']}.{meta['namespace']}"
    expected |= {meta["name"], host, f"{host}.svc", f"{host}.svc.cluster.local"}
    assert names(tmp_path / "extender.crt") == expected
    assert names(tmp_path / "scheduler.crt") == {"kube-scheduler"}


def test_only_the_owner_reads_the_keys(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tls"
    made("--output", folder)
    made("--output", folder, "--ca", folder)
    assert {path.name for path in folder.iterdir()} == FILES
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        wanted = 0o600 if path.suffix == ".key" else 0o644
        assert path.stat().st_mode & 0o777 == wanted, path


def test_renewal_keeps_the_authority_and_changes_the_rest(tmp_path: Path) -> None:
    made("--output", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    made("--output", tmp_path, "--ca", tmp_path, "--days", "30")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in FILES if before[name] == after[name]} == {"ca.crt", "ca.key"}
    expires = certificate(tmp_path / "extender.crt").not_valid_after_utc
    assert timedelta(days=29) < expires - datetime.now(UTC) <= timedelta(days=30)


def test_the_authoritys_key_stays_where_it_was(tmp_path: Path) -> None:
    made("--output", tmp_path / "safe")
    made("--output", tmp_path / "sent", "--ca", tmp_path / "safe")
    assert {path.name for path in (tmp_path / "sent").iterdir()} == FILES - {"ca.key"}
    same = "ca.crt"
    assert (tmp_path / "sent" / same).read_bytes() == (tmp_path / "safe" / same).read_bytes()


def test_the_secret_is_the_extenders_alone(tmp_path: Path) -> None:
    done = made("--output", tmp_path, "--secret", "--namespace", "gpus")
    secret = yaml.safe_load(done.stdout)
    assert secret["metadata"]["name"] == "gpu-topology-tls"
    assert secret["metadata"]["namespace"] == "gpus"
    assert secret["type"] == "kubernetes.io/tls"
    content = {name: base64.b64decode(data) for name, data in secret["data"].items()}
    assert content == {
        "ca.crt": (tmp_path / "ca.crt").read_bytes(),
        "tls.crt": (tmp_path / "extender.crt").read_bytes(),
        "tls.key": (tmp_path / "extender.key").read_bytes(),
    }
    assert "gpu-topology.gpus.svc" in names(tmp_path / "extender.crt")


def test_no_certificate_outlives_its_authority() -> None:
    authority = Authority.new("ours", NOW)
    late = NOW + timedelta(days=3600)
    loaded = Authority.load(authority.certificate, authority.key, late)
    assert loaded.issue("x", Use.SERVER, [], late, 365).expires == authority.expires


def test_a_certificate_is_valid_for_clocks_that_are_behind() -> None:
    authority = Authority.new("ours", NOW)
    issued = authority.issue("x", Use.SERVER, ["x"], NOW, 1)
    for pem in (authority.certificate, issued.certificate):
        assert x509.load_pem_x509_certificate(pem).not_valid_before_utc < NOW - timedelta(minutes=5)


def _refused(message: str, *words: object) -> None:
    refused(asked(main, "certificates", *words), message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--namespace", "a.b"], "--namespace", id="namespace"),
        pytest.param(["--name", "a b"], "neither a DNS name nor an IP", id="name"),
        pytest.param(["--name", "a" * 64], "neither a DNS name nor an IP", id="long label"),
        pytest.param(["--client-name", ""], "--client-name", id="no client name"),
        pytest.param(["--client-name", "x" * 65], "1 to 64", id="long client name"),
        pytest.param(["--days", "0"], "--days", id="days"),
        pytest.param(["--ca", "nowhere"], "nowhere/ca.crt", id="no authority"),
    ],
)
def test_wrong_words_are_one_line_and_leave_nothing(
    tmp_path: Path, words: list[str], message: str
) -> None:
    _refused(message, "--output", tmp_path / "tls", *words)
    assert not (tmp_path / "tls").exists()


@pytest.mark.parametrize(
    ("left", "message"), [("ca.crt", "with --ca"), ("ca.key", "the key is not PEM")]
)
def test_an_authority_is_never_written_over(tmp_path: Path, left: str, message: str) -> None:
    (tmp_path / left).write_text("somebody's")
    _refused(message, "--output", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [left]


def _leaf(folder: Path) -> None:
    for suffix in ("crt", "key"):
        shutil.copy(folder / f"extender.{suffix}", folder / f"ca.{suffix}")


def _foreign(folder: Path) -> None:
    shutil.copy(folder / "extender.key", folder / "ca.key")


def _intermediate(folder: Path) -> None:
    between = trustme.CA().create_child_ca()
    between.cert_pem.write_to_path(folder / "ca.crt")
    between.private_key_pem.write_to_path(folder / "ca.key")


def _old(folder: Path) -> None:
    old = Authority.new("ours", datetime.now(UTC) - timedelta(days=3651))
    (folder / "ca.crt").write_bytes(old.certificate)
    (folder / "ca.key").write_bytes(old.key)


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        pytest.param(_leaf, "not that of an authority", id="no authority"),
        pytest.param(_foreign, "the key does not belong to the certificate", id="another key"),
        pytest.param(_intermediate, "a root is needed", id="no root"),
        pytest.param(_old, "expired", id="expired"),
        pytest.param(lambda f: (f / "ca.crt").write_text("x"), "is not PEM", id="no PEM"),
        pytest.param(lambda f: (f / "ca.key").write_text("x"), "is not PEM", id="no key"),
        pytest.param(lambda f: (f / "ca.key").unlink(), "ca.key: No such file", id="gone"),
    ],
)
def test_an_authority_that_cannot_sign_is_one_line(
    tmp_path: Path, breaks: object, message: str
) -> None:
    made("--output", tmp_path)
    assert callable(breaks)
    breaks(tmp_path)
    before = (tmp_path / "extender.crt").read_bytes()
    _refused(message, "--output", tmp_path, "--ca", tmp_path)
    assert (tmp_path / "extender.crt").read_bytes() == before


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _refused("a folder is needed", "--output", tmp_path / "file")
    _refused("a folder is needed", "--output", tmp_path / "file" / "tls")


def test_the_second_schedulers_secret_is_what_the_first_ones_host_would_get(tmp_path: Path) -> None:
    done = made("--output", tmp_path, "--secret", "--scheduler-secret", "--namespace", "gpus")
    extender, scheduler = yaml.safe_load_all(done.stdout)
    assert extender["metadata"]["name"] == "gpu-topology-tls"
    assert scheduler["metadata"]["name"] == "gpu-topology-scheduler"
    assert scheduler["metadata"]["namespace"] == "gpus"
    content = {name: base64.b64decode(data) for name, data in scheduler["data"].items()}
    files = {"ca.crt": "ca.crt", "tls.crt": "scheduler.crt", "tls.key": "scheduler.key"}
    assert content == {name: (tmp_path / file).read_bytes() for name, file in files.items()}


def test_the_second_schedulers_secret_may_be_asked_for_alone(tmp_path: Path) -> None:
    done = made("--output", tmp_path, "--scheduler-secret")
    (only,) = yaml.safe_load_all(done.stdout)
    assert only["metadata"]["name"] == "gpu-topology-scheduler"


class Killed(BaseException):
    """What a test ends the command with, between two of its writes."""


@pytest.mark.parametrize("writes", range(7))
@pytest.mark.parametrize("renewing", [False, True])
def test_a_killed_command_can_be_run_again(
    tmp_path: Path, writes: int, renewing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[object] = [f"--output={tmp_path}"]
    if renewing:
        made(*words)
        words.append(f"--ca={tmp_path}")
    left = writes
    write = COMMAND._write

    def until_killed(path: Path, content: bytes, mode: int) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        write(path, content, mode)

    with monkeypatch.context() as patch:
        patch.setattr(COMMAND, "_write", until_killed)
        with suppress(Killed):
            asked(main, "certificates", *words)
    kept = (tmp_path / "ca.key").read_bytes() if (tmp_path / "ca.key").exists() else None
    again = asked(main, "certificates", *words)
    if again.returncode:  # it says itself what to type
        assert f"with --ca {tmp_path}" in again.stderr
        made(f"--output={tmp_path}", f"--ca={tmp_path}")
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert kept in (None, (tmp_path / "ca.key").read_bytes()), "no key is thrown away"
    key, crt = (tmp_path / "ca.key").read_bytes(), (tmp_path / "ca.crt").read_bytes()
    Authority.load(crt, key, datetime.now(UTC))
    for which in ("extender", "scheduler"):
        certificate(tmp_path / f"{which}.crt").verify_directly_issued_by(
            certificate(tmp_path / "ca.crt")
        )
