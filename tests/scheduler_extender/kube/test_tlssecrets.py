"""``gpu-topology certificates --keep``, and the leader that renews what it has made."""

import base64
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from scheduler_extender.certificateauthority import EARLIER, Authority, Use
from scheduler_extender.cli import main
from scheduler_extender.cli.options import SCHEDULER_SECRET, SECRET
from scheduler_extender.http.certificates import Certificates, Tls
from scheduler_extender.http.servers import Addresses
from scheduler_extender.kube.tlssecrets import AUTHORITY, TlsSecrets, secret
from scheduler_extender.leader import renewal
from tests.commands import Done, asked, refused
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import switched
from tests.scheduler_extender.serving import running
from tests.waiting import PATIENCE, eventually
from topology.kubeapi.apiserver import ApiServer, ConflictError

NAMESPACE = "gpu-topology-system"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
NAMES = (SECRET, SCHEDULER_SECRET)
NOW = datetime.now(UTC).replace(microsecond=0)


class Kept:
    """A fake API server, and the command with its kubeconfig."""

    def __init__(self, fake: FakeApiServer, folder: Path) -> None:
        self.fake, self.folder = fake, folder
        self.kubeconfig = fake.write_kubeconfig(folder / "kubeconfig")
        self.api = ApiServer.from_kubeconfig(self.kubeconfig)
        self.secrets = TlsSecrets(self.api, NAMESPACE)

    def keep(self, *words: object) -> Done:
        done = asked(main, "certificates", "--keep", "--kubeconfig", self.kubeconfig, *words)
        assert done.returncode == 0, done.stderr
        return done

    def renewed(self) -> list[str]:
        """Renew what is due, and return the names of these Secrets."""
        return [name for name in NAMES if self.secrets.renew(name)]

    def data(self, name: str) -> dict[str, bytes]:
        found = self.fake.read(f"{SECRETS}/{name}")["data"]
        return {key: base64.b64decode(value) for key, value in found.items()}

    def everything(self) -> list[dict[str, bytes]]:
        return [self.data(name) for name in (AUTHORITY, *NAMES)]

    def certificate(self, name: str) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.data(name)["tls.crt"])

    def mount(self, name: str, files: Path) -> Path:
        """Write a Secret's files, as a kubelet does."""
        files.mkdir(exist_ok=True)
        for key, content in self.data(name).items():
            (files / key).write_bytes(content)
        return files


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with FakeApiServer() as fake:
        found = Kept(fake, tmp_path)
        yield found
        found.api.close()


def validity(certificate: x509.Certificate) -> timedelta:
    return certificate.not_valid_after_utc - certificate.not_valid_before_utc - EARLIER


def in_days(days: float) -> datetime:
    return NOW + timedelta(days=days)


def made_early(kept: Kept) -> Authority:
    """Make the Secrets as they are after eight years of renewals, all of them due."""
    authority = Authority.new("gpu-topology", in_days(-3000))
    kept.secrets.create(AUTHORITY, authority, authority)
    for name, use, names in (
        (SECRET, Use.SERVER, ["localhost", "127.0.0.1"]),
        (SCHEDULER_SECRET, Use.CLIENT, ["kube-scheduler"]),
    ):
        issued = authority.issue(names[0], use, names, in_days(-9), 10)
        kept.secrets.create(name, issued, authority)
    return authority


@pytest.mark.parametrize("renewed_first", NAMES)
def test_a_renewed_certificate_is_trusted_by_who_has_not_read_its_own_yet(
    kept: Kept, renewed_first: str
) -> None:
    """Also if the authority is a renewed one: kube-scheduler reads ca.crt only when it starts."""
    made_early(kept)
    files = {name: kept.mount(name, kept.folder / name) for name in NAMES}
    assert kept.renewed() == [*NAMES]
    kept.mount(renewed_first, files[renewed_first])
    pair = (files[SECRET] / "tls.crt", files[SECRET] / "tls.key", files[SECRET] / "ca.crt")
    shown = ssl.create_default_context(cafile=files[SCHEDULER_SECRET] / "ca.crt")
    mine = files[SCHEDULER_SECRET]
    shown.load_cert_chain(mine / "tls.crt", mine / "tls.key")
    tls = Tls(*pair, frozenset({"kube-scheduler"}))
    with running(switched(), where=Addresses(tls=tls)) as service:
        for host in ("localhost", "127.0.0.1"):
            url = f"https://{host}:{service.ports[0]}/healthz"
            assert httpx.get(url, verify=shown, timeout=PATIENCE).status_code == 200


def test_the_authority_is_renewed_with_its_key_and_the_certificates_for_their_days(
    kept: Kept,
) -> None:
    former = made_early(kept)
    before = {name: kept.certificate(name) for name in NAMES}
    kept.renewed()
    assert validity(kept.certificate(AUTHORITY)) == timedelta(days=3650)
    assert kept.data(AUTHORITY)["tls.key"] == former.key
    for name, old in before.items():
        new = kept.certificate(name)
        assert kept.data(name)["ca.crt"] == kept.data(AUTHORITY)["tls.crt"]
        assert new.subject == old.subject
        for kind in (x509.SubjectAlternativeName, x509.ExtendedKeyUsage):
            of = new.extensions.get_extension_for_class(kind)
            assert of == old.extensions.get_extension_for_class(kind)
        assert new.public_key() != old.public_key()
        assert validity(new) == timedelta(days=10)


@pytest.mark.parametrize(
    ("days", "renewed"),
    [
        pytest.param(200, [], id="more-than-a-third-left"),
        pytest.param(250, [*NAMES], id="less-than-a-third-left"),
        pytest.param(400, [*NAMES], id="expired"),
    ],
)
def test_a_certificate_is_renewed_in_its_last_third(
    kept: Kept, days: int, renewed: list[str]
) -> None:
    kept.keep()
    kept.fake.ahead = timedelta(days=days).total_seconds()
    assert kept.renewed() == renewed


def test_a_machine_whose_clock_is_a_year_fast_makes_certificates_that_are_valid(
    kept: Kept,
) -> None:
    kept.fake.ahead = timedelta(days=-365).total_seconds()
    kept.keep()
    for name in (AUTHORITY, *NAMES):
        made = kept.certificate(name)
        assert made.not_valid_before_utc < in_days(-364) < made.not_valid_after_utc
    assert kept.renewed() == []


def test_a_certificate_that_begins_later_is_renewed(kept: Kept) -> None:
    """Nobody accepts it, and its last third would be far away."""
    kept.fake.ahead = timedelta(days=365).total_seconds()
    kept.keep()
    kept.fake.ahead = 0
    assert kept.renewed() == [*NAMES]
    for name in (AUTHORITY, *NAMES):
        assert kept.certificate(name).not_valid_before_utc < datetime.now(UTC)


def test_what_is_there_and_not_due_stays(kept: Kept) -> None:
    created = kept.keep().stdout.splitlines()
    assert created == [f"Secret {name}: created" for name in (AUTHORITY, *NAMES)]
    before = kept.everything()
    assert kept.keep().stdout == ""
    assert kept.everything() == before


def test_a_secret_that_is_gone_is_made_again_with_the_same_authority(kept: Kept) -> None:
    kept.keep()
    authority = kept.data(AUTHORITY)
    kept.fake.remove(f"{SECRETS}/{SCHEDULER_SECRET}")
    assert kept.keep("--days", 1).stdout == f"Secret {SCHEDULER_SECRET}: created\n"
    assert kept.data(SCHEDULER_SECRET)["ca.crt"] == authority["tls.crt"]
    with pytest.raises(ConflictError):
        kept.secrets.create(SECRET, *[Authority.new("a", NOW)] * 2)


def test_a_certificate_that_is_due_is_renewed_by_the_next_installation(kept: Kept) -> None:
    kept.keep()
    authority = kept.secrets.authority()
    assert authority is not None
    old = authority.issue("kube-scheduler", Use.CLIENT, ["kube-scheduler"], in_days(-9), 10)
    kept.fake.put(SECRETS, secret(SCHEDULER_SECRET, NAMESPACE, old, authority))
    assert kept.keep().stdout == f"Secret {SCHEDULER_SECRET}: renewed\n"
    until = kept.certificate(SCHEDULER_SECRET).not_valid_after_utc
    assert timedelta(days=9) < until - NOW < timedelta(days=11)


def by_another(kept: Kept, name: str) -> bytes:
    """Put a Secret there that another authority has signed, and that is due."""
    other = Authority.new("another", in_days(-9))
    issued = other.issue("kube-scheduler", Use.CLIENT, ["kube-scheduler"], in_days(-9), 10)
    kept.fake.put(SECRETS, secret(name, NAMESPACE, issued, other))
    return issued.certificate


def test_what_another_authority_has_signed_is_left_alone(kept: Kept) -> None:
    made = [by_another(kept, name) for name in NAMES]
    assert f"made without the Secret {AUTHORITY}, and stay as they are" in kept.keep().stdout
    ours = Authority.new("gpu-topology", NOW)
    kept.secrets.create(AUTHORITY, ours, ours)
    assert kept.keep().stdout == ""
    assert [kept.data(name)["tls.crt"] for name in NAMES] == made


@pytest.mark.parametrize("authority", [False, True])
@pytest.mark.parametrize(("there", "missing"), [NAMES, NAMES[::-1]])
def test_a_secret_that_would_not_fit_the_other_one_is_not_made(
    kept: Kept, there: str, missing: str, authority: bool
) -> None:
    """As after an installation whose kube-scheduler had its certificate on its node."""
    by_another(kept, there)
    if authority:
        ours = Authority.new("gpu-topology", NOW)
        kept.secrets.create(AUTHORITY, ours, ours)
    words = ("certificates", "--keep", "--kubeconfig", kept.kubeconfig)
    refused(
        asked(main, *words),
        f"{missing} is missing, and {AUTHORITY} has not signed {there}; create {missing} with "
        f"the authority of {there}, or delete {there}",
    )
    made = {each["metadata"]["name"] for each in kept.fake.items(SECRETS)}
    assert made == {there, *([AUTHORITY] if authority else [])}


def test_the_leader_renews_and_another_replica_does_not(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.keep()
    authority = kept.secrets.authority()
    assert authority is not None
    old = authority.issue("gpu-topology", Use.SERVER, ["localhost"], in_days(-9), 10)
    kept.fake.put(SECRETS, secret(SECRET, NAMESPACE, old, authority))
    monkeypatch.setattr(renewal, "LOOK", 0.01)
    monkeypatch.setattr(renewal, "AFTER_FAILURE", 0.01)
    kept.fake.refuse(503, times=4, path=f"{SECRETS}/{AUTHORITY}")
    stopping, asks = threading.Event(), [0]

    def leads() -> bool:
        asks[0] += 1
        return asks[0] > 3

    what = (kept.secrets, NAMES, leads, stopping)
    thread = threading.Thread(target=renewal.renew_daily, args=what)
    thread.start()
    try:
        eventually(lambda: kept.data(SECRET)["tls.crt"] != old.certificate, "it is renewed")
    finally:
        stopping.set()
        thread.join(PATIENCE)
    assert asks[0] >= 6
    files = kept.mount(SECRET, kept.folder / "mounted")
    Certificates(Tls(files / "tls.crt", files / "tls.key", files / "ca.crt"))


def test_a_secret_that_cannot_be_written_hinders_no_other(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_early(kept)
    before = kept.data(SECRET), kept.data(SCHEDULER_SECRET)
    monkeypatch.setattr(renewal, "LOOK", 0.01)
    kept.fake.refuse(403, times=None, path=f"{SECRETS}/{SECRET}$")
    stopping = threading.Event()
    what = (kept.secrets, NAMES, lambda: True, stopping)
    thread = threading.Thread(target=renewal.renew_daily, args=what)
    thread.start()
    try:
        eventually(lambda: kept.data(SCHEDULER_SECRET) != before[1], "the other one is renewed")
    finally:
        stopping.set()
        thread.join(PATIENCE)
    assert kept.data(SECRET) == before[0]


def without_authority(found: dict[str, Any]) -> None:
    found["data"] = None


def without_key(found: dict[str, Any]) -> None:
    del found["data"]["tls.key"]


@pytest.mark.parametrize("pem", [None, "", "PEM", "-----BEGIN CERTIFICATE-----\nMIIB\n"])
@pytest.mark.parametrize("first", [False, True])
def test_a_secret_without_a_certificate_is_named(kept: Kept, first: bool, pem: str | None) -> None:
    """As one that was made empty, to be filled later: no extender starts with it."""
    if not first:
        kept.keep()
    data = None if pem is None else {"tls.crt": base64.b64encode(pem.encode()).decode()}
    kept.fake.put(SECRETS, {"metadata": {"name": SECRET}, "type": "Opaque", "data": data})
    words = ("certificates", "--keep", "--kubeconfig", kept.kubeconfig)
    refused(asked(main, *words), f"{SECRET} has no certificate in tls.crt: delete {SECRET}")


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        pytest.param(without_authority, "the certificate is not PEM", id="empty"),
        pytest.param(without_key, "the key is not PEM", id="no-key"),
    ],
)
def test_an_authority_that_cannot_be_read_is_one_line(
    kept: Kept, breaks: Callable[[dict[str, Any]], None], why: str
) -> None:
    kept.keep()
    found = kept.fake.read(f"{SECRETS}/{AUTHORITY}")
    breaks(found)
    kept.fake.put(SECRETS, found)
    words = ("certificates", "--keep", "--kubeconfig", kept.kubeconfig)
    refused(asked(main, *words), f"Secrets of {NAMESPACE}: {AUTHORITY}: {why}")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        pytest.param((), "give either --output FOLDER or --keep", id="neither"),
        pytest.param(("--keep", "--output", "x"), "give either --output", id="both"),
        pytest.param(("--keep", "--secret"), "--scheduler-secret need --output", id="secret"),
    ],
)
def test_the_certificates_go_to_one_place(words: tuple[str, ...], why: str) -> None:
    refused(asked(main, "certificates", *words), why)
