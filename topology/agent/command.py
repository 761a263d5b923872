"""The command ``gpu-topology agent``: its options, and what it prints."""

import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import structlog
import yaml

from topology import codec
from topology.agent.model.hardware import nothing_seen
from topology.agent.model.record import Picture
from topology.agent.service import AgentService, BootIdError
from topology.agent.serving import PortError
from topology.agent.settings import Settings
from topology.core.devices import NodeName
from topology.kubeapi.apiserver import ApiFailure, ApiServer

log = structlog.get_logger(__name__)


class OptionError(Exception):
    """An option that cannot be used. The message is the one line that the user sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The agent's settings, and the servers that it connects to."""

    settings: Settings
    kubeconfig: Path | None  # None: the API server of the cluster in which this process runs
    context: str | None  # of the kubeconfig
    host: str  # address that the metrics port listens on
    metrics_port: int


def once(options: Options, *, show: bool) -> int:
    """Collect the record once, then print or publish it. Returns the exit code."""
    try:
        api = _api(options)
    except ApiFailure as error:
        if not show or options.kubeconfig is not None:
            raise OptionError(
                f"{error}; outside a cluster, give --kubeconfig or --print"
            ) from error
        api = None
    service = _service(options, api)
    try:
        picture = service.once(write=not show)
    except TimeoutError as error:
        sys.stderr.write(f"gpu-topology: the record was not published: {error}\n")
        return 1
    if show:
        sys.stdout.write(text(options.settings.node, picture))
    for unseen in picture.unseen:
        sys.stderr.write(f"not read: {unseen}\n")
    return 0


def run(options: Options, *, show: bool) -> int:
    """Run the agent until a signal. Returns the exit code."""
    if show:
        raise OptionError("--print needs --once")
    try:
        api = _api(options)
    except ApiFailure as error:
        raise OptionError(f"{error}; outside a cluster, give --kubeconfig PATH") from error
    service = _service(options, api)
    try:
        metrics = service.serve(options.host, options.metrics_port)
    except PortError as error:
        raise OptionError(f"--metrics-port: {error}") from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    metrics.start()
    log.info(
        "watching",
        node=options.settings.node,
        metrics=f"http://{options.host}:{metrics.port}/metrics",
    )
    try:
        service.run()
    finally:
        metrics.stop()
    return 0


def text(node: NodeName, picture: Picture) -> str:
    """Return the GPUTopology object as YAML; without devices if the hardware could not be read."""
    topology = picture.topology or nothing_seen(node)
    return yaml.safe_dump(codec.encode(topology, picture.report), sort_keys=False)


def _api(options: Options) -> ApiServer:
    if options.kubeconfig is not None:
        return ApiServer.from_kubeconfig(options.kubeconfig, options.context)
    return ApiServer.in_cluster()


def _service(options: Options, api: ApiServer | None) -> AgentService:
    try:
        return AgentService(options.settings, api)
    except BootIdError as error:
        raise OptionError(f"--boot-id: {error}") from error
