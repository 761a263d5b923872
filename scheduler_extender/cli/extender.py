"""``gpu-topology extender``: the service, over a cluster file or an API server."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import cluster_file, log_json, one_of, two_ports
from scheduler_extender.http.addresses import Addresses, Tls
from scheduler_extender.state.answers.decision import Refusals, Settings
from topology.core.placement import Verdict

if TYPE_CHECKING:  # the service's modules take a while to load, which other commands need not wait
    from scheduler_extender.http.service import Service
    from scheduler_extender.leader.address import Address
    from scheduler_extender.leader.leader import Leader, Replication

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""What Kubernetes takes for an object's name, and a little more."""


def extender(
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve the cluster that this YAML file describes."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve the cluster that this kubeconfig names."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Context of the kubeconfig. Without it: the current one."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address that both ports listen on.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="Port for kube-scheduler.")] = 8888,
    admin_port: Annotated[
        int, typer.Option(metavar="PORT", help="Port for people and Prometheus.")
    ] = 8889,
    require: Annotated[
        str,
        typer.Option(
            metavar="VERDICT",
            help="The weakest verdict on which a node takes a pod with required constraints: "
            "guaranteed or expected.",
        ),
    ] = "expected",
    refusals: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="Keep pods off nodes whose kubelet would refuse them: certain refusals only; "
            "possible ones too, while other nodes are left; or ignore them. Pods with required "
            "constraints stay off either way.",
        ),
    ] = "certain",
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow",
            help="Refuse nothing: score nodes, and count and tell which ones would have been "
            "refused. No promise is made or kept.",
        ),
    ] = False,
    stale_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="A node is stale when its report has not changed for so long.",
            min=1,
        ),
    ] = 180.0,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve both ports over TLS with this certificate."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of the certificate.")
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take only schedulers whose certificate this CA has signed.",
        ),
    ] = None,
    client_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Take only schedulers whose certificate has this common name or DNS name. Needs "
            "--client-ca. May be given several times.",
        ),
    ] = None,
    leader_elect: Annotated[
        bool,
        typer.Option(
            "--leader-elect",
            help="Run as one of several replicas, of which one answers. Needs --pod-namespace and "
            "--pod-name.",
        ),
    ] = False,
    lease: Annotated[
        str, typer.Option(metavar="NAME", help="The Lease that says which replica leads.")
    ] = "gpu-topology",
    lease_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="So long after the leader's last sign of life another replica takes over.",
            min=2,
            max=120,
        ),
    ] = 10.0,
    pod_namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE",
            envvar="POD_NAMESPACE",
            help="Namespace of the pod in which this replica runs, of the Lease and the Service.",
        ),
    ] = None,
    pod_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="POD_NAME",
            help="Name of the pod in which this replica runs.",
        ),
    ] = None,
    pod_ip: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            envvar="POD_IP",
            help="Address that the leader writes into the EndpointSlice of --service. Without it: "
            "it writes none.",
        ),
    ] = None,
    service: Annotated[
        str,
        typer.Option(metavar="NAME", help="The Service by which kube-scheduler finds the leader."),
    ] = "gpu-topology",
    open_metrics: Annotated[
        bool,
        typer.Option(
            "--open-metrics",
            help="Let everybody read /metrics. Without it the admin port asks for a token there, "
            "too, unless it listens on a loopback address.",
        ),
    ] = False,
) -> None:
    """Run the scheduler extender, which kube-scheduler asks.

    With --cluster it serves the cluster that a file describes. Otherwise it follows an API server:
    the one that --kubeconfig names, or that of the cluster in which it runs.

    Whoever reaches the port for kube-scheduler can have pods bound. On an address that is not
    loopback, give --tls-cert, --tls-key, --client-ca and --client-name. Files that change are read
    again. The admin port asks for a bearer token there that the API server accepts.
    """
    if cluster is not None and kubeconfig is not None:
        raise BadInputError("--cluster and --kubeconfig exclude each other")
    two_ports(port, admin_port)
    weakest = one_of("--require", require, {"guaranteed": Verdict.GUARANTEED}, Verdict.EXPECTED)
    words = {which.value: which for which in Refusals}
    kept_off = one_of("--refusals", refusals, words, Refusals.CERTAIN, "certain")
    tls = _tls(tls_cert, tls_key, client_ca, client_name)
    replication = None
    if leader_elect:
        if cluster is not None:
            raise BadInputError("--leader-elect needs an API server; --cluster has none")
        replication = _replication(
            pod_namespace, pod_name, lease, lease_seconds, _address(pod_ip, port, service)
        )
    log_json()
    where = Addresses(host, port, admin_port, tls, open_metrics)
    if cluster is not None:
        settings = Settings(weakest, None, all_pods_known=False, refusals=kept_off, shadow=shadow)
        _serve_file(cluster, settings, where)
    else:
        settings = Settings(weakest, stale_after, refusals=kept_off, shadow=shadow)
        _serve_kube(kubeconfig, context, settings, where, replication)


def _tls(
    certificate: Path | None, key: Path | None, client_ca: Path | None, names: list[str] | None
) -> Tls | None:
    """The TLS files, once they are known to be usable; None where none are given."""
    if not (certificate or key or client_ca or names):
        return None
    if certificate is None or key is None:
        raise BadInputError("--tls-cert and --tls-key are needed together")
    if names and client_ca is None:
        raise BadInputError("--client-name needs --client-ca")
    from scheduler_extender.http.certificates import Certificates, CertificatesError

    found = Tls(certificate, key, client_ca, frozenset(names or ()))
    try:
        Certificates(found)
    except CertificatesError as error:
        raise BadInputError(f"TLS files cannot be used: {error}") from error
    return found


def _serve_file(path: Path, settings: Settings, where: Addresses) -> None:
    from scheduler_extender.serving import file_service

    content = cluster_file(path)
    service, _ = file_service(content, settings)
    _serve(service, where, f"{len(content.records)} nodes from {path}")


def _replication(
    namespace: str | None, name: str | None, lease: str, seconds: float, address: Address | None
) -> Replication:
    from scheduler_extender.kube.bindable import OwnPod
    from scheduler_extender.leader.leader import Replication

    if not namespace or not name:
        raise BadInputError(
            "--leader-elect needs --pod-namespace and --pod-name, or the variables POD_NAMESPACE "
            "and POD_NAME"
        )
    for option, part in (("--pod-namespace", namespace), ("--pod-name", name), ("--lease", lease)):
        if not NAME.fullmatch(part):
            raise BadInputError(f"{option}: {part!r} is no name of a Kubernetes object")
    return Replication(OwnPod(namespace, name), lease, seconds, address)


def _address(ip: str | None, port: int, service: str) -> Address | None:
    from scheduler_extender.leader.address import Address

    if not ip:
        return None
    try:
        ipaddress.ip_address(ip)
    except ValueError as error:
        raise BadInputError(f"--pod-ip: {ip!r} is no IP address") from error
    if not NAME.fullmatch(service):
        raise BadInputError(f"--service: {service!r} is no name of a Kubernetes object")
    return Address(ip, port, service)


def _serve_kube(
    kubeconfig: Path | None,
    context: str | None,
    settings: Settings,
    where: Addresses,
    replication: Replication | None,
) -> None:
    from scheduler_extender.serving import kube_service, replica_service
    from topology.kubeapi.apiserver import ApiFailure, ApiServer

    try:
        if kubeconfig is not None:
            api = ApiServer.from_kubeconfig(kubeconfig, context)
        else:
            api = ApiServer.in_cluster()
    except ApiFailure as error:
        hint = "" if kubeconfig else "; outside a cluster give --cluster FILE or --kubeconfig PATH"
        raise BadInputError(f"{error}{hint}") from error
    if replication is None:
        with kube_service(api, settings) as service:
            _serve(service, where, "the API server's cluster")
    else:
        with replica_service(api, settings, replication) as (service, leader):
            _serve(service, where, "the API server's cluster, one of several replicas", leader)


def _serve(service: Service, where: Addresses, what: str, leader: Leader | None = None) -> None:
    from scheduler_extender.http.servers import PortError
    from scheduler_extender.serving import servers

    try:
        found = servers(service, where)
    except PortError as error:
        raise BadInputError(str(error)) from error
    if leader is not None:
        found.on_stop.append(leader.resign)
        leader.on_lost.append(found.close_idle)
    scheme = "https" if where.tls else "http"
    port, admin_port = found.ports
    log = structlog.get_logger()

    def started() -> None:
        for warning in found.warnings:
            log.warning(warning)
        log.info(
            "serving",
            what=what,
            scheduler=f"{scheme}://{where.host}:{port}/scheduler",
            admin=f"{scheme}://{where.host}:{admin_port}/v1/nodes",
        )

    found.run(started)
