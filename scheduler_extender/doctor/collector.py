"""Reads a cluster and its installation with the caller's own rights, and changes nothing."""

import base64
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import urllib3
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from scheduler_extender.doctor.observations import (
    PROBE,
    SECOND,
    Answered,
    Certificate,
    Configuration,
    Json,
    Kubelet,
    Node,
    Record,
    Seen,
    Unseen,
    at,
    there,
)
from scheduler_extender.doctor.schedulerconfig import entry_in
from scheduler_extender.kube.drasinks import GROUP
from scheduler_extender.kube.reading import FORBIDDEN, listed, one_look
from scheduler_extender.kube.sinks import NODES_PATH, PAGE, RECORDS_PAGE, RECORDS_PATH
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.wire import FilterResult
from topology.core.placement import Verdict
from topology.kubeapi.apiserver import ApiError, ApiServer, NotFoundError, Query, path
from topology.kubeapi.failures import unreachable_text

TIMEOUT = 10.0  # seconds for one answer
KUBELETS_TIMEOUT = 20.0  # seconds for the kubelets together
AT_ONCE = 16  # kubelets that are queried at the same time
MAX_FILE = 1024 * 1024  # bytes of a certificate or key
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gputopologies.gpu-topology.io"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
SECRETS = {"gpu-topology-tls": "extender", "gpu-topology-scheduler": "scheduler"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The user's input.

    ``system`` is the namespace of the installation, and ``version`` is our version. ``namespace``
    is the one whose pods are read if the caller may not read all pods. ``files`` are configurations
    of kube-scheduler, and ``metrics`` is the metrics text of one replica.
    """

    system: str
    version: str
    namespace: str = "default"
    files: Sequence[Configuration] = ()
    metrics: str | None = None


class Look:
    """A reader of a cluster and of the installation in it."""

    def __init__(self, api: ApiServer, asked: Asked) -> None:
        self._api, self._asked = api, asked

    def all(self) -> Seen:
        """Read everything. Raises :class:`.ApiFailure` if the API server does not answer."""
        asked, ours = self._asked, self._asked.system
        records = self._list(RECORDS_PATH, "GPUTopology records", Record, page=RECORDS_PAGE)
        cluster, unseen = self._cluster()
        config_map = self._get("/api/v1", ours, "configmaps", "gpu-topology-scheduler")
        configurations = [*asked.files]
        if text := at(there(config_map), "data", "config.yaml"):
            configurations.append(Configuration(where=SECOND, text=str(text)))
        metrics: list[Sample] | Unseen = Unseen(
            "the extender was not queried; --forward queries it"
        )
        if asked.metrics is not None:
            families = text_string_to_metric_families(asked.metrics)
            metrics = [sample for family in families for sample in family.samples]
        secrets = {name: self._get("/api/v1", ours, "secrets", name) for name in SECRETS}
        names = [str(r.metadata.name) for r in there(records) or ()]
        slices = "/apis/discovery.k8s.io/v1"  # the leader has an address of one family only
        scheduled = [("labelSelector", "component=kube-scheduler")]
        return Seen(
            system=ours,
            version=asked.version,
            observed_at=self._api.today(),
            ahead=-self._api.ahead,
            crd=self._read(CRD, "the CustomResourceDefinition"),
            policies=self._policies(),
            nodes=self._list(NODES_PATH, "nodes", Node),
            records=records,
            classes=unseen or self._list(f"{GROUP}/deviceclasses", "DeviceClasses", Json),
            daemon_sets=self._list("/apis/apps/v1/daemonsets", "DaemonSets", Json),
            gpu_clusters=self._list("/apis/nvidia.com/v1alpha1/gpuclusters", "GPUClusters", Json),
            extender=self._get("/apis/apps/v1", ours, "deployments", "gpu-topology-extender"),
            service=self._get("/api/v1", ours, "services", "gpu-topology"),
            lease=self._get("/apis/coordination.k8s.io/v1", ours, "leases", "gpu-topology"),
            leader=self._get(slices, ours, "endpointslices", "gpu-topology-leader-ipv4")
            or self._get(slices, ours, "endpointslices", "gpu-topology-leader-ipv6"),
            schedulers=self._list(
                "/api/v1/namespaces/kube-system/pods", "pods in kube-system", Json, scheduled
            ),
            configurations=configurations,
            missing=[name for name, secret in secrets.items() if secret is None],
            certificates=[*_secrets(secrets), *_files(asked.files)],
            kubelets=self._kubelets(names),
            metrics=metrics,
            cluster=cluster,
            answered=[a for each in asked.files if (a := _ask(each, names)) is not None],
        )

    def _read(self, where: str, what: str) -> Json | Unseen | None:
        try:
            return msgspec.json.decode(self._api.get(where, timeout=TIMEOUT), type=Json)
        except NotFoundError:
            return None
        except ApiError as error:
            return _refused(error, what)

    def _get(self, group: str, namespace: str, plural: str, name: str) -> Json | Unseen | None:
        where = path(f"{group}/namespaces", namespace, plural, name)
        return self._read(where, f"{plural} in {namespace}")

    def _list(
        self, where: str, what: str, kind: type[T], query: Query = (), page: int = PAGE
    ) -> list[T] | Unseen:
        """List objects. An object that cannot be decoded is left out."""
        found = []
        try:
            for raw in listed(self._api, where, page, query)[0]:
                with suppress(msgspec.DecodeError):
                    found.append(msgspec.json.decode(raw, type=kind))
        except NotFoundError:
            return []
        except ApiError as error:
            return _refused(error, what)
        return found

    def _policies(self) -> list[Json] | Unseen:
        found: list[Json] = []
        for kind, plural in POLICIES.items():
            part = self._list(f"{ADMISSION}/{plural}", "admission policies", Json)
            if isinstance(part, Unseen):
                return part
            found += [{**each, "kind": kind} for each in part]  # items of a list have no kind
        return found

    def _kubelets(self, names: Sequence[str]) -> dict[str, Kubelet | Unseen]:
        """Return the configuration of each kubelet, read through the API server's proxy."""
        end = time.monotonic() + KUBELETS_TIMEOUT

        def ask(name: str) -> Kubelet | Unseen:
            if time.monotonic() > end:
                return Unseen("there was not enough time")
            try:
                body = self._api.get(path(NODES_PATH, name, "proxy", "configz"), timeout=TIMEOUT)
                return msgspec.json.decode(body, type=dict[str, Kubelet])["kubeletconfig"]
            except ApiError as error:
                return _refused(error, "kubelets' configurations (nodes/proxy)", always=True)
            except (msgspec.DecodeError, KeyError):
                return Unseen("the answer is not a kubelet's configuration")

        for first in names[:1]:  # a caller who may not query one kubelet may query none
            if isinstance(kubelets := ask(first), Unseen) and kubelets.forbidden:
                return dict.fromkeys(names, kubelets)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return dict(zip(names, threads.map(ask, names), strict=True))

    def _cluster(self) -> tuple[Cache | Unseen, Unseen | None]:
        """Return the cluster, and why the objects of DRA cannot be read (None if they can)."""
        settings = Settings(Verdict.EXPECTED)
        try:
            seen = one_look(self._api, self._asked.namespace, settings, time.monotonic)
        except ApiError as error:
            return _refused(error, "pods and GPUTopology records"), None
        return seen.cluster, Unseen(seen.dra_unread) if seen.dra_unread else None


def _refused(error: ApiError, what: str, *, always: bool = False) -> Unseen:
    """Return why something was not seen: the caller lacks a right.

    Other errors are raised again. With ``always`` they become the reason instead.
    """
    if error.status in FORBIDDEN and error.status != 401:
        return Unseen(f"you may not read {what}", forbidden=True)
    if always:
        return Unseen(f"{error.status} {error.message or error.reason}"[:200])
    raise error


def _secrets(secrets: Mapping[str, Json | Unseen | None]) -> Iterator[Certificate | Unseen]:
    for name, secret in secrets.items():
        if isinstance(secret, Unseen):
            yield secret
        for key, whose in (("tls.crt", SECRETS[name]), ("ca.crt", "authority")):
            if isinstance(text := at(secret, "data", key), str):
                where = f"{key} of the Secret {name}"
                yield from _certificates(where, whose, base64.b64decode(text))


def _certificates(where: str, whose: str, pem: bytes) -> Iterator[Certificate | Unseen]:
    try:
        for content in x509.load_pem_x509_certificates(pem):
            yield Certificate(where, whose, content)
    except ValueError:
        yield Unseen(f"{where} is not a certificate")


def _tls(configuration: Configuration) -> Mapping[str, Any]:
    entry = entry_in(configuration.text)
    tls = entry.get("tlsConfig") if isinstance(entry, dict) else None
    return tls if isinstance(tls, dict) else {}


def _files(configurations: Sequence[Configuration]) -> Iterator[Certificate | Unseen]:
    """Yield the certificates that the configurations name and that are on this machine."""
    for each in configurations:
        for field, whose in (("certFile", "scheduler"), ("caFile", "authority")):
            name = _tls(each).get(field)
            if not isinstance(name, str):
                continue
            try:
                with Path(name).open("rb") as file:
                    pem = file.read(MAX_FILE)
            except OSError as error:
                yield Unseen(f"{name}: {error.strerror}")
            else:
                yield from _certificates(name, whose, pem)


def _ask(configuration: Configuration, nodes: Sequence[str]) -> Answered | None:
    """Send a filter request to the extender as kube-scheduler does, and return the result.

    None if this machine lacks kube-scheduler's certificate, or the configuration has no usable
    entry.
    """
    entry, tls, where = entry_in(configuration.text), _tls(configuration), configuration.where
    if isinstance(entry, str):
        return None
    files = [tls.get(field) for field in ("caFile", "certFile", "keyFile")]
    url = f"{entry.get('urlPrefix')}/{entry.get('filterVerb')}"
    if not url.startswith(("https://", "http://")):
        return None
    known: dict[str, Any] = {}
    try:
        if url.startswith("https:"):
            ca, certificate, key = (str(file or "") for file in files)
            context = ssl.create_default_context(cafile=ca)
            context.load_cert_chain(certificate, key)
            known = {"ssl_context": context}
            if name := tls.get("serverName"):
                known["server_hostname"] = str(name)
    except ssl.SSLError as error:
        return Answered(
            where=where, problem=f"the certificate and the key do not match: {error.reason}"
        )
    except (OSError, ValueError):
        return None
    body = msgspec.json.encode({"Pod": PROBE, "NodeNames": list(nodes)})
    try:
        with urllib3.PoolManager(**known) as pools:
            answer = pools.request(
                "POST",
                url,
                body=body,
                headers={"Content-Type": "application/json"},
                timeout=TIMEOUT,
                retries=False,
            )
        if answer.status != 200:
            said = answer.data[:200].decode("utf-8", "replace")
            return Answered(where=where, problem=f"it answers {answer.status}: {said}")
        found = msgspec.json.decode(answer.data, type=FilterResult)
    except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
        return Answered(where=where, problem=unreachable_text(url, error))
    takes = len(found.node_names or ())
    return Answered(where=where, nodes=len(nodes), takes=takes, problem=found.error)
