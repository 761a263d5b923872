"""Wire a service together, over a cluster file or over an API server.

A service has the state (:class:`.Cache`), a source that fills it, a writer of binds, metrics, and
three ports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scheduler_extender.clientlimits import DEFAULT, Limits
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.files.clusterfile import ClusterFile, feed
from scheduler_extender.http.admin import create_admin_app
from scheduler_extender.http.app import create_app
from scheduler_extender.http.bothports import Service
from scheduler_extender.http.certificates import Certificates
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.http.metricsport import create_metrics_app
from scheduler_extender.http.servers import Addresses, Servers, listen, listen_on_loopback, loopback
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs import BindLimiter
from scheduler_extender.web.routes import add_map
from topology.kubeapi.apiserver import ApiServer

if TYPE_CHECKING:  # file mode need not load them
    from scheduler_extender.leader.leader import Leader, Replication

STARTS_WITHIN = 30.0  # seconds within which a service in a thread must listen on its ports


def file_service(content: ClusterFile, settings: Settings) -> Service:
    """Return a service over the content of a cluster file."""
    cluster = Cache(time.monotonic, settings)
    feed(cluster, content)
    return in_memory(cluster)


def in_memory(cluster: Cache) -> Service:
    """Return a service over a cluster that the caller fills."""
    binder = FileBinder(cluster)
    metrics = Metrics()
    metrics.watch(cluster)
    shadow = metrics.tell_shadow() if cluster.settings.shadow else None
    return Service(
        cluster, binder, lambda: None, metrics, saw=binder.saw, shadow=shadow, file_mode=True
    )


def kube_service(api: ApiServer, settings: Settings) -> AbstractContextManager[Service]:
    """Return a service over an API server, whose objects are watched inside the block."""
    return _following(api, Cache(time.monotonic, settings))


@contextmanager
def replica_service(
    api: ApiServer, settings: Settings, replication: Replication
) -> Iterator[tuple[Service, Leader]]:
    """Yield a service that is one of several replicas.

    It takes part in the election inside the block.
    """
    from scheduler_extender.leader.leader import Leader

    cluster = Cache(time.monotonic, settings)
    leader = Leader(
        api,
        replication,
        synced=lambda: service.unready() is None,
        sees=lambda: not cluster.is_stale(),
    )
    with _following(api, cluster, leader) as service:
        service.metrics.show_term(lambda: leader.term)
        leader.start()
        stopping = threading.Event()
        if replication.renews:
            from scheduler_extender.kube.tlssecrets import TlsSecrets
            from scheduler_extender.leader.renewal import renew_daily

            secrets = TlsSecrets(api, replication.own.namespace)
            what = (secrets, replication.renews, leader.leads, stopping)
            threading.Thread(target=renew_daily, args=what, name="renewal", daemon=True).start()
        try:
            yield replace(service, standby=leader.standby, term=lambda: leader.term), leader
        finally:
            stopping.set()
            leader.stop()


@contextmanager
def _following(api: ApiServer, cluster: Cache, replica: Leader | None = None) -> Iterator[Service]:
    from scheduler_extender.kube.source import KubeSource

    metrics = Metrics()
    metrics.watch(cluster)
    source = KubeSource(api, cluster, replica=replica)
    with source.following(metrics.follow, metrics.show):
        shadowing = cluster.settings.shadow
        yield Service(
            cluster,
            source.binder,
            source.unready,
            metrics,
            limiter=metrics.show_limiter(BindLimiter(cluster)),
            shadow=metrics.tell_shadow(source.note_would_reject) if shadowing else None,
        )


def servers(service: Service, where: Addresses, limits: Limits = DEFAULT) -> Servers:
    """Bind the ports of a service.

    Raises :class:`.servers.PortError` and :class:`.certificates.CertificatesError`.
    """
    certificates = None
    if where.tls is not None:
        certificates = Certificates(where.tls)
        service.metrics.certificates(certificates)
    verbs = listen(where.host, where.port)
    people, metrics = listen_on_loopback(where.admin_port), listen(where.host, where.metrics_port)
    admin = create_admin_app(service)
    listeners = add_map(admin, service, where.dashboard)
    running = Servers(
        (create_app(service), verbs),
        (admin, people),
        (create_metrics_app(service), metrics),
        certificates,
        limits,
        where.public_host,
    )
    running.on_stop.append(listeners.close)
    running.warnings = [] if loopback(verbs) else open_doors(where)
    if service.shadow is not None:
        running.warnings.append("shadow mode: the extender rejects no node and guarantees no GPUs")
    if certificates is not None and (soon := certificates.expiry_warning(datetime.now(UTC))):
        running.warnings.append(soon)
    return running


def open_doors(where: Addresses) -> list[str]:
    """Return warnings about who can use a port outside loopback without authentication."""
    if where.tls is None:
        return [
            "plain HTTP: every client that reaches port "
            f"{where.port} can have pods bound to nodes; give --tls-cert, --tls-key, --client-ca "
            "and --client-name"
        ]
    if where.tls.client_ca is None:
        return [
            f"no --client-ca: every client that reaches port {where.port} can have pods bound to "
            "nodes"
        ]
    if not where.tls.client_names:
        return [
            "no --client-name: every client with a certificate of the client CA can have pods "
            "bound to nodes"
        ]
    return []


@contextmanager
def in_thread(
    service: Service, where: Addresses = Addresses(), limits: Limits = DEFAULT
) -> Iterator[Servers]:
    """Serve in a thread of this process inside the block."""
    running = servers(service, where, limits)
    started = threading.Event()
    thread = threading.Thread(target=lambda: running.run(started.set, signals=False), daemon=True)
    thread.start()
    if not started.wait(STARTS_WITHIN):
        raise RuntimeError("the service did not start")
    try:
        yield running
    finally:
        running.stop()
        thread.join(10)
