"""``gpu-topology extender``: the service, over a cluster file or an API server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import cluster_file, log_json, one_of, two_ports
from scheduler_extender.http.addresses import Addresses, Tls
from scheduler_extender.state.decision import Refusals, Settings
from topology.core.placement import Verdict

if TYPE_CHECKING:  # the service's modules take a while to load, which other commands need not wait
    from scheduler_extender.http.service import Service


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
    log_json()
    where = Addresses(host, port, admin_port, tls, open_metrics)
    if cluster is not None:
        settings = Settings(weakest, None, all_pods_known=False, refusals=kept_off)
        _serve_file(cluster, settings, where)
    else:
        _serve_kube(kubeconfig, context, Settings(weakest, stale_after, refusals=kept_off), where)


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


def _serve_kube(
    kubeconfig: Path | None, context: str | None, settings: Settings, where: Addresses
) -> None:
    from scheduler_extender.serving import kube_service
    from topology.kubeapi.apiserver import ApiFailure, ApiServer

    try:
        if kubeconfig is not None:
            api = ApiServer.from_kubeconfig(kubeconfig, context)
        else:
            api = ApiServer.in_cluster()
    except ApiFailure as error:
        hint = "" if kubeconfig else "; outside a cluster give --cluster FILE or --kubeconfig PATH"
        raise BadInputError(f"{error}{hint}") from error
    with kube_service(api, settings) as service:
        _serve(service, where, "the API server's cluster")


def _serve(service: Service, where: Addresses, what: str) -> None:
    from scheduler_extender.http.servers import PortError
    from scheduler_extender.serving import servers

    try:
        found = servers(service, where)
    except PortError as error:
        raise BadInputError(str(error)) from error
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
