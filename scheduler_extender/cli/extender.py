"""Runs the service of ``gpu-topology extender`` from its start to its end."""

from pathlib import Path

import structlog

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import cluster_file
from scheduler_extender.cli.interrupts import pressed
from scheduler_extender.http.bothports import Service
from scheduler_extender.http.servers import Addresses, PortError
from scheduler_extender.leader.leader import Leader, Replication
from scheduler_extender.serving import file_service, kube_service, replica_service, servers
from scheduler_extender.state.answers.decision import Settings
from topology.kubeapi.apiserver import ApiFailure, ApiServer

OUTSIDE = "; outside a cluster give --cluster FILE or --kubeconfig PATH"


def serve_file(path: Path, settings: Settings, where: Addresses) -> None:
    """Serve the cluster that a cluster file describes. Raises :class:`BadInputError`."""
    content = cluster_file(path)
    service = file_service(content, settings)
    _serve(service, where, f"{len(content.records)} nodes from {path}")


def serve_cluster(
    kubeconfig: Path | None,
    context: str | None,
    settings: Settings,
    where: Addresses,
    replication: Replication | None,
) -> None:
    """Serve the cluster of an API server. Raises :class:`BadInputError`."""
    try:
        if kubeconfig is not None:
            api = ApiServer.from_kubeconfig(kubeconfig, context)
        else:
            api = ApiServer.in_cluster()
    except ApiFailure as error:
        hint = "" if kubeconfig else OUTSIDE
        raise BadInputError(f"{error}{hint}") from error
    if replication is None:
        with kube_service(api, settings) as service:
            _serve(service, where, "the API server's cluster")
    else:
        with replica_service(api, settings, replication) as (service, leader):
            _serve(service, where, "the API server's cluster, one of several replicas", leader)


def _serve(service: Service, where: Addresses, what: str, leader: Leader | None = None) -> None:
    try:
        both = servers(service, where)
    except PortError as error:
        raise BadInputError(str(error)) from error
    if leader is not None:
        both.on_stop.append(leader.resign)
        leader.on_lost.append(both.close_idle)
    scheme = "https" if where.tls else "http"
    port, admin_port, metrics_port = both.ports
    log = structlog.get_logger()

    def started() -> None:
        if pressed():  # Ctrl-C was pressed before the servers handled it
            both.stop()
        for warning in both.warnings:
            log.warning(warning)
        log.info(
            "serving",
            what=what,
            scheduler=f"{scheme}://{where.host}:{port}/scheduler",
            map=f"http://127.0.0.1:{admin_port}/map",
            metrics=f"http://{where.host}:{metrics_port}/metrics",
        )

    both.run(started)
    if pressed():
        raise KeyboardInterrupt
