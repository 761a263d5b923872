"""A thread that reads the agent's Node object and the kubelet's configuration from time to time.

The configuration comes from the kubelet itself over HTTPS (``/configz``), or from a file.
``/configz`` shows what really runs, flags and drop-in files included. It needs the permission to
get ``nodes/configz`` (known to Kubernetes 1.33 and newer). A file shows what was written for the
kubelet.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import structlog
import urllib3
from urllib3.exceptions import HTTPError

from topology import regularfile
from topology.agent.model.nodecontext import NODE, NOTHING_KNOWN, KubeletConfig, kubelet_config
from topology.agent.model.observations import CountedDevices, Unseen
from topology.core.devices import NodeName
from topology.kubeapi.apiserver import ApiError, ApiFailure, ApiServer
from topology.yamltext import documents

log = structlog.get_logger(__name__)


TIMEOUT = 5.0
MAX_FILE = 1024 * 1024  # bytes of a configuration file
# Seconds between two readings: usually, and while the kubelet's count of devices matters.
PERIOD, SHORT_PERIOD = 300.0, 30.0
RETRY = 15.0  # the longest pause after a failed reading, in seconds; the first pauses are shorter
NODES_PATH = "/api/v1/nodes"


class ConfigurationUnseenError(Exception):
    """The failure to read the kubelet's configuration. The message says why."""


def from_file(path: Path) -> KubeletConfig:
    """Return the configuration in a KubeletConfiguration file, YAML or JSON.

    Raises :class:`ConfigurationUnseenError`.
    """
    try:
        content = next(iter(documents(regularfile.content(path, MAX_FILE).decode())), None)
    except (OSError, ValueError) as error:
        cause = " ".join(str(error).split())
        raise ConfigurationUnseenError(f"{path}: {cause}"[:300]) from error
    if not isinstance(content, dict) or content.get("kind") != "KubeletConfiguration":
        raise ConfigurationUnseenError(f"{path}: kind must be KubeletConfiguration")
    return kubelet_config(content)


def from_kubelet(
    address: str, headers: Mapping[str, str], ca_file: str | None, *, insecure: bool = False
) -> KubeletConfig:
    """Return the configuration that the kubelet at ``host:port`` reports.

    Its certificate is checked with ``ca_file`` unless ``insecure``, since in many clusters kubelets
    sign their own. Raises :class:`ConfigurationUnseenError`.
    """
    url = f"https://{address}/configz"
    with urllib3.PoolManager(
        cert_reqs="CERT_NONE" if insecure else "CERT_REQUIRED", ca_certs=ca_file
    ) as pool:
        if insecure:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        try:
            answer = pool.request(
                "GET", url, headers=dict(headers), timeout=TIMEOUT, retries=False, redirect=False
            )
        except (HTTPError, OSError) as error:
            # Leave out the addresses of Python objects, which differ at each try.
            cause = re.sub(r"<[^>]* at 0x[0-9a-f]+>:? ?", "", " ".join(str(error).split()))
            raise ConfigurationUnseenError(f"{url}: {cause}"[:300]) from error
    if answer.status != 200:
        raise ConfigurationUnseenError(f"{url}: {answer.status} {answer.reason or ''}".strip())
    try:
        content = json.loads(answer.data)["kubeletconfig"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationUnseenError(
            f"{url}: the answer is not a kubelet's configuration"
        ) from error
    if not isinstance(content, dict):
        raise ConfigurationUnseenError(f"{url}: the answer is not a kubelet's configuration")
    return kubelet_config(content)


@dataclass(frozen=True, slots=True)
class NodeState:
    """The values that are known of the Node and its kubelet."""

    uid: str = ""  # empty before the first answer
    labels: Mapping[str, str] = field(default_factory=dict)
    kubelet: KubeletConfig = NOTHING_KNOWN
    unseen: tuple[Unseen, ...] = ()
    counted: CountedDevices | None = None


@dataclass(frozen=True, slots=True)
class KubeletSources:
    """The sources of the kubelet's configuration.

    Each value comes from the first source that has it. The order is ``told``, the kubelet, and the
    files.
    """

    told: KubeletConfig = NOTHING_KNOWN  # set by an operator
    files: Sequence[Path] = ()
    address: str | None = None  # the kubelet's ``host:port``; with None it comes from the Node
    insecure: bool = False  # whether its certificate is not checked


class _Meta(msgspec.Struct):
    uid: str = ""
    labels: dict[str, str] | None = None


class _Address(msgspec.Struct):
    type: str = ""
    address: str = ""


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    last_heartbeat_time: str | None = None


class _Status(msgspec.Struct, rename="camel"):
    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    conditions: list[_Condition] | None = None
    addresses: list[_Address] | None = None
    daemon_endpoints: dict[str, dict[str, int]] = {}  # the ports that the kubelet listens on


class _Node(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    status: _Status = msgspec.field(default_factory=_Status)


_decode = msgspec.json.Decoder(_Node).decode


class NodeWatch:
    """A daemon thread that reads the Node, from :meth:`start` on.

    ``on_news`` may only take a note.
    """

    def __init__(
        self,
        api: ApiServer | None,
        node: NodeName,
        sources: KubeletSources,
        on_news: Callable[[], None],
    ) -> None:
        self._api = api
        self._node = node
        self._sources = sources
        self._on_news = on_news
        self.state = NodeState()  # what is known now
        self._wake = threading.Event()
        # A configuration that was read before the newest request may be that of a former kubelet.
        self._requests = self._answered = 0
        self._address: str | None = None
        self._stopping = False
        self._period = PERIOD
        self._thread = threading.Thread(target=self._run, name="node", daemon=True)

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread without waiting for a request that is running."""
        self._stopping = True
        self._wake.set()

    def ask_again(self) -> None:
        """Ask again now and forget the former answer, since the configuration may have changed."""
        self._requests += 1
        self._wake.set()

    def look_often(self, often: bool) -> None:
        """Set whether to read often, because the kubelet's count of devices matters from now on."""
        before, self._period = self._period, SHORT_PERIOD if often else PERIOD
        if self._period < before:
            self._wake.set()

    def labels_now(self) -> Mapping[str, str]:
        """Return the Node's labels, read now; the known ones if the API server does not answer."""
        if self._api is not None:
            with suppress(ApiFailure, msgspec.DecodeError):
                node = _decode(self._api.get(f"{NODES_PATH}/{self._node}", timeout=TIMEOUT))
                return node.metadata.labels or {}
        return self.state.labels

    def look(self) -> bool:
        """Read the Node and the configuration once. Returns whether everything was answered."""
        requests = self._requests  # before the reading, because the reading may miss a later one
        unseen: list[Unseen] = []
        node: _Node | None = None
        if self._api is not None:
            try:
                node = _decode(self._api.get(f"{NODES_PATH}/{self._node}", timeout=TIMEOUT))
            except ApiError as error:
                unseen.append(Unseen(NODE, f"{error.status} {error.reason}"))
            except (ApiFailure, msgspec.DecodeError):
                # A fixed text, because a text that differs at each try would be published at each
                # try.
                unseen.append(Unseen(NODE, "the API server does not answer"))
        config, why = self._kubelet_config(node)
        unseen += why
        known = self.state
        found = NodeState(
            node.metadata.uid if node else known.uid,
            (node.metadata.labels or {}) if node else known.labels,
            config.over(known.kubelet) if requests == self._answered else config,
            tuple(unseen),
            _counted(node.status) if node else known.counted,
        )
        if not why:
            self._answered = requests
        if found != known:
            self.state = found
            self._on_news()
        return not unseen

    def _kubelet_config(self, node: _Node | None) -> tuple[KubeletConfig, list[Unseen]]:
        config, causes = self._sources.told, []
        attempts: list[Callable[[], KubeletConfig]] = []
        self._address = self._sources.address or _address(node) or self._address
        api, address, insecure = self._api, self._address, self._sources.insecure
        if api is not None and address is not None:
            attempts.append(
                lambda: from_kubelet(address, api.authorization(), api.ca_file, insecure=insecure)
            )
        attempts += [partial(from_file, path) for path in self._sources.files]
        for attempt in attempts:
            if config.names_all_policies:
                break
            try:
                config = config.over(attempt())
            except (ConfigurationUnseenError, ApiFailure) as error:
                causes.append(Unseen("kubelet's configuration", str(error)))
        return config, [] if config.names_all_policies else causes

    def _run(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                well = self.look()
            except Exception:
                log.exception("reading the Node failed")
                well = False
            failures = 0 if well else failures + 1
            self._wake.wait(self._period if well else min(RETRY, 2.0 ** min(failures - 1, 10)))
            self._wake.clear()


def _address(node: _Node | None) -> str | None:
    """Return the address on which the kubelet listens, from its Node; None if the Node has none."""
    for address in (node.status.addresses or ()) if node else ():
        if address.type == "InternalIP" and node is not None:
            host = f"[{address.address}]" if ":" in address.address else address.address
            port = node.status.daemon_endpoints.get("kubeletEndpoint", {}).get("Port", 10250)
            return f"{host}:{port}"
    return None


def _counted(status: _Status) -> CountedDevices | None:
    """Return how many devices of plugins the kubelet counts; None if it does not say when."""
    at = [c.last_heartbeat_time for c in status.conditions or () if c.type == "Ready"]
    if not at or at[0] is None:
        return None
    return CountedDevices(at[0], _devices(status.capacity), _devices(status.allocatable))


def _devices(resources: Mapping[str, str | int] | None) -> dict[str, int]:
    """Return the resources of plugins.

    Their names have a domain, and their amounts are whole numbers.
    """
    return {
        name: int(amount)
        for name, amount in (resources or {}).items()
        if "/" in name and str(amount).isdecimal()
    }
