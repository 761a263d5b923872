"""Whether kube-scheduler could show a certificate to an extender that trusts an authority."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from scheduler_extender.certificateauthority import Authority, AuthorityError, Use, check_client

NOW = datetime(2026, 11, 26, tzinfo=UTC)
OURS, OTHERS = Authority.new("gpu-topology", NOW), Authority.new("gpu-topology", NOW)
SHOWN = OURS.issue("kube-scheduler", Use.CLIENT, (), NOW, 365)
SERVES = OURS.issue("kube-scheduler", Use.SERVER, (), NOW, 365)
OLD = Authority.new("gpu-topology", NOW - timedelta(days=3650), OURS.key)
OTHER = OTHERS.issue("kube-scheduler", Use.CLIENT, (), NOW, 365)


def test_one_of_several_authorities_is_enough() -> None:
    check_client(OTHERS.certificate + OURS.certificate, SHOWN.certificate, SHOWN.key, NOW)


@pytest.mark.parametrize(
    ("authority", "certificate", "key", "days", "said"),
    [
        (OTHERS.certificate, SHOWN.certificate, SHOWN.key, 0, "is not signed by ca.crt"),
        (OURS.certificate, SHOWN.certificate, OTHER.key, 0, "is not the key of scheduler.crt"),
        (OURS.certificate, SHOWN.certificate, SHOWN.key, 366, "expired on 2027-11-26"),
        (OURS.certificate, SERVES.certificate, SERVES.key, 0, "is not for clients"),
        (OLD.certificate, SHOWN.certificate, SHOWN.key, 0, "ca.crt expired on 2026-11-26"),
        (b"nothing", SHOWN.certificate, SHOWN.key, 0, "ca.crt or scheduler.crt is not PEM"),
        (OURS.certificate, SHOWN.certificate, b"nothing", 0, "the key is not PEM"),
    ],
    ids=[
        "another authority",
        "another key",
        "expired",
        "a server's",
        "old authority",
        "no certificate",
        "no key",
    ],
)
def test_what_would_not_be_accepted_is_refused(
    authority: bytes, certificate: bytes, key: bytes, days: int, said: str
) -> None:
    with pytest.raises(AuthorityError, match=said):
        check_client(authority, certificate, key, NOW + timedelta(days=days))
