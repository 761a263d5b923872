"""Renews the certificates in the Secrets of the cluster while this replica leads."""

import threading
from collections.abc import Callable, Sequence

import msgspec
import structlog

from scheduler_extender.certificateauthority import AuthorityError
from scheduler_extender.kube.tlssecrets import TlsSecrets
from topology.kubeapi.apiserver import ApiFailure

log = structlog.get_logger(__name__)

EVERY = 24 * 3600.0  # seconds between two checks of the Secrets
AFTER_FAILURE = 600.0  # the same after a check that failed
LOOK = 5.0  # seconds until a replica that does not lead looks again whether it does


def renew_daily(
    secrets: TlsSecrets, names: Sequence[str], leads: Callable[[], bool], stopping: threading.Event
) -> None:
    """Renew the Secrets' certificates that are due, until ``stopping`` is set.

    Two leaders at a time do no harm: the API server refuses the second write of a version.
    """
    pause = LOOK
    while not stopping.wait(pause):
        pause = LOOK
        if not leads():
            continue
        pause = EVERY
        for name in names:
            try:
                if secrets.renew(name):
                    log.info("a certificate was renewed", secret=name)
                continue
            except (ApiFailure, AuthorityError, msgspec.DecodeError) as error:
                log.warning("a certificate could not be renewed", secret=name, cause=str(error))
            except Exception:
                # A failed check must not end this thread.
                log.exception("a certificate could not be checked", secret=name)
            pause = AFTER_FAILURE
