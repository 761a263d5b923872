"""The declaration of ``gpu-topology extender``, the service for a cluster file or an API server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import (
    check_ports,
    is_dns,
    is_ip,
    log_json,
    one_of,
    weakest,
)
from scheduler_extender.cli.kubeconfig import ContextOption
from scheduler_extender.cli.options import (
    SCHEDULER_SECRET,
    SECRET,
    MetricsPortOption,
    WeakestOption,
)

if TYPE_CHECKING:
    from scheduler_extender.http.certificates import Tls
    from scheduler_extender.http.servers import Addresses
    from scheduler_extender.leader.leader import Replication
    from scheduler_extender.state.answers.decision import Settings

# Matches the names that Kubernetes accepts for objects, and a few more.
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The cluster that is served. By default it is the one in which this process runs."""

    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve the cluster of this cluster file."),
    ] = None
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve the cluster of this kubeconfig."),
    ] = None
    context: ContextOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The addresses of the three ports."""

    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address of the ports for kube-scheduler and for metrics.",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="PORT", help="Port for kube-scheduler.")] = 8888
    admin_port: Annotated[
        int,
        typer.Option(metavar="PORT", help="Port for the map and /v1, on loopback only."),
    ] = 8889
    metrics_port: MetricsPortOption = 8891
    public_host: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="DNS name of a proxy in the same pod for the admin port.",
        ),
    ] = None

    dashboard: Annotated[
        str,
        typer.Option(metavar="URL", help="Grafana dashboard that the map links to."),
    ] = ""

    def addresses(self, tls: Tls | None) -> Addresses:
        """Return the addresses of the service. Raises :class:`BadInputError`."""
        check_ports(self.port, self.admin_port, self.metrics_port)
        name = self.public_host
        if name is not None and (name.startswith("*") or not is_dns(name)):
            raise BadInputError(
                f"--public-host: allowed is a DNS name without a port, not {name[:60]!r}"
            )
        page = self.dashboard
        if page and not re.fullmatch(r'https?://[A-Za-z0-9.-]+(:\d+)?(/[!-"$-~]*)?', page):
            raise BadInputError(f"--dashboard: allowed is an http or https URL, not {page[:60]!r}")
        from scheduler_extender.http.servers import Addresses

        ports = self.port, self.admin_port, self.metrics_port
        return Addresses(self.host, *ports, tls, name or "", page)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """The settings for the extender's decisions about nodes."""

    require: WeakestOption = "expected"
    refusals: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="Nodes to avoid because their kubelet would refuse the pod. certain: certain "
            "refusals; possible: also possible ones, while other nodes are left; ignore: "
            "none. Pods with required constraints always avoid certain refusals.",
        ),
    ] = "certain"
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow",
            help="Reject no node, promise nothing, and report which nodes would have been "
            "rejected.",
        ),
    ] = False
    stale_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Seconds until an unchanged report makes its node stale. A stale node takes no "
            "pod with required constraints.",
            min=1,
        ),
    ] = 180.0

    def settings(self, *, of_file: bool) -> Settings:
        """Return these options in the form of the state. Raises :class:`BadInputError`.

        The nodes of a cluster file never become stale, and may have pods that the file does not
        name.
        """
        from scheduler_extender.state.answers.decision import Refusals, Settings

        least = weakest(self.require)
        words = {which.value: which for which in Refusals}
        return Settings(
            least,
            None if of_file else self.stale_after,
            all_pods_known=not of_file,
            refusals=one_of("--refusals", self.refusals, words),
            shadow=self.shadow,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The files of TLS on the port for kube-scheduler, and the accepted client certificates."""

    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Certificate of the port for kube-scheduler."),
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of this certificate.")
    ] = None
    client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Accept only clients with a certificate from this CA.",
        ),
    ] = None
    client_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Accept only clients whose certificate has this name. Needs --client-ca. "
            "Repeatable.",
        ),
    ] = None

    def usable(self) -> Tls | None:
        """Check and return the files; None if none are given. Raises :class:`BadInputError`."""
        if not (self.tls_cert or self.tls_key or self.client_ca or self.client_name):
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise BadInputError("--tls-cert and --tls-key are needed together")
        if self.client_name and self.client_ca is None:
            raise BadInputError("--client-name needs --client-ca")
        from scheduler_extender.http.certificates import Certificates, CertificatesError, Tls

        files = Tls(self.tls_cert, self.tls_key, self.client_ca, frozenset(self.client_name or ()))
        try:
            Certificates(files)
        except CertificatesError as error:
            raise BadInputError(f"TLS files cannot be used: {error}") from error
        return files


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The settings of this process as one of several replicas."""

    leader_elect: Annotated[
        bool,
        typer.Option(
            "--leader-elect",
            help="Run as one of several replicas. Needs --pod-namespace and --pod-name.",
        ),
    ] = False
    lease: Annotated[str, typer.Option(metavar="NAME", help="Lease that names the leader.")] = (
        "gpu-topology"
    )
    lease_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Seconds until another replica replaces a silent leader.",
            min=2,
            max=120,
        ),
    ] = 10.0
    pod_namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE",
            envvar="POD_NAMESPACE",
            help="Namespace of the pod, the Lease and the Service.",
        ),
    ] = None
    pod_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="POD_NAME",
            help="Name of this replica's pod.",
        ),
    ] = None
    pod_ip: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            envvar="POD_IP",
            help="Address that the leader writes into the EndpointSlice of --service.",
        ),
    ] = None
    service: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Service through which kube-scheduler reaches the leader."
        ),
    ] = "gpu-topology"
    renew_certificates: Annotated[
        bool,
        typer.Option(
            "--renew-certificates",
            help=f"While leading, renew the Secrets {SECRET} and {SCHEDULER_SECRET}, as "
            "`gpu-topology certificates --keep` does.",
        ),
    ] = False

    def replication(self, port: int) -> Replication:
        """Return the settings of the election, and the address that the leader publishes."""
        from scheduler_extender.kube.bindable import OwnPod
        from scheduler_extender.leader.address import Address
        from scheduler_extender.leader.leader import Replication

        address = None
        if self.pod_ip:
            if not is_ip(self.pod_ip):
                raise BadInputError(f"--pod-ip: {self.pod_ip!r} is no IP address")
            if not NAME.fullmatch(self.service):
                said = f"{self.service!r} is no name of a Kubernetes object"
                raise BadInputError(f"--service: {said}")
            address = Address(self.pod_ip, port, self.service)
        if not self.pod_namespace or not self.pod_name:
            raise BadInputError(
                "--leader-elect needs --pod-namespace and --pod-name, or the variables "
                "POD_NAMESPACE and POD_NAME"
            )
        names = {
            "--pod-namespace": self.pod_namespace,
            "--pod-name": self.pod_name,
            "--lease": self.lease,
        }
        for option, part in names.items():
            if not NAME.fullmatch(part):
                raise BadInputError(f"{option}: {part!r} is no name of a Kubernetes object")
        own = OwnPod(self.pod_namespace, self.pod_name)
        renews = (SECRET, SCHEDULER_SECRET) if self.renew_certificates else ()
        return Replication(own, self.lease, self.lease_seconds, address, renews)


def extender(
    *,
    served: Served,
    ports: Ports,
    deciding: Deciding,
    tls: TlsFiles,
    replica: Replica,
) -> None:
    """Run the scheduler extender, which kube-scheduler calls.

    It serves the cluster of --cluster or --kubeconfig, or the one in which it runs.

    A client that reaches the port for kube-scheduler can have pods bound. On an address other than
    loopback, set --tls-cert, --tls-key, --client-ca and --client-name. Changed files are loaded
    again. The admin port listens on loopback only; forward it with kubectl.
    """
    cluster = served.cluster
    if cluster is not None and served.kubeconfig is not None:
        raise BadInputError("--cluster and --kubeconfig exclude each other")
    settings = deciding.settings(of_file=cluster is not None)
    where = ports.addresses(tls.usable())
    replication = None
    if replica.leader_elect:
        if cluster is not None:
            raise BadInputError("--leader-elect needs an API server; --cluster has none")
        replication = replica.replication(ports.port)
    elif replica.renew_certificates:
        raise BadInputError("--renew-certificates needs --leader-elect")
    log_json()
    from scheduler_extender.cli.extender import serve_cluster, serve_file

    if cluster is not None:
        serve_file(cluster, settings, where)
    else:
        serve_cluster(served.kubeconfig, served.context, settings, where, replication)
