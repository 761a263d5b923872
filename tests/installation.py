"""A whole installation, and all that can be wrong with it: what ``gpu-topology doctor`` looks at.

The table is tried with a fake API server (``scheduler_extender/test_doctor.py``); a real one
(``e2e/test_doctor.py``) has the same installation: :class:`Installation` says what they differ in.
"""

import base64
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.annotations import IMPLICIT_NAME
from scheduler_extender.certificateauthority import Authority, Use
from tests.commands import ROOT
from tests.fakes.apiserver import merge_patch
from tests.nodes import pod
from topology import codec
from topology.core.report import Report
from topology.machines import machine

Json = dict[str, Any]
SYSTEM = "gpu-topology-system"
NODE = "train-07"
CLIENT = "nvidia.com/gpu.deploy.client"
NODES = "/api/v1/nodes"
RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments"
DAEMON_SETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
SECRETS = f"/api/v1/namespaces/{SYSTEM}/secrets"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM}/endpointslices"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{ADMISSION}/validatingadmissionpolicies"
BINDINGS = f"{ADMISSION}/validatingadmissionpolicybindings"
SCHEDULERS = "/api/v1/namespaces/kube-system/pods"
EXTENDER, LEASE = f"{DEPLOYMENTS}/gpu-topology-extender", f"{LEASES}/gpu-topology"
SLICE, SECRET = f"{SLICES}/gpu-topology-leader-ipv4", f"{SECRETS}/gpu-topology-tls"
CRD = f"{CRDS}/gputopologies.gpu-topology.io"
RECORD = f"{RECORDS}/{NODE}"
CONFIGZ = f"{NODES}/{NODE}/proxy/configz"
DRA, BUS = "/apis/resource.k8s.io/v1", "0000:06:00.0"  # where one of its GPUs is
CONDITIONS = ("Ready", "Complete")


def now(seconds: float = 0.0) -> str:
    """The time of day, or the one so many seconds later."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def record(**allocator: str) -> Json:
    """What the agent of a node with two sockets publishes."""
    found: Json = codec.encode(machine("dgx1-v100").topology(NODE), Report("boot", 1))
    fields = {"pluginVersion": "0.17.4", "topologyManagerPolicy": "none", **allocator}
    found["spec"]["allocator"] |= {
        "cpuManagerPolicy": "none",
        "memoryManagerPolicy": "None",
        **fields,
    }
    found["status"] |= {"observedAt": now(), "conditions": [condition(kind) for kind in CONDITIONS]}
    return found


def condition(kind: str, status: str = "True", message: str = "") -> Json:
    """A condition of a record."""
    reason = "Said" if message else "AsExpected"
    fields = {"status": status, "reason": reason, "message": message}
    return {"type": kind, "lastTransitionTime": now()[:19] + "Z", **fields}


def node(name: str = NODE, **labels: str) -> Json:
    """A Node with eight GPUs."""
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    status: Json = {"capacity": amounts, "allocatable": amounts}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def plugin() -> Json:
    """NVIDIA's plugin with feature discovery, which is in the same image."""
    image = "example/nvidia/k8s-device-plugin:v0.17.4"
    containers = [
        {"name": "plugin", "image": image},
        {"name": "gfd", "image": image, "command": ["gpu-feature-discovery"]},
    ]
    labels = {"app": "plugin"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": "plugin"}, "spec": spec}


def static_pod(*flags: str) -> Json:
    """kube-scheduler's pod as kubeadm's static one shows itself."""
    container = {
        "name": "main",
        "image": "example/kube-scheduler",
        "command": ["scheduler", *flags],
    }
    spec = {"containers": [container], "hostNetwork": True, "schedulerName": "none"}
    labels = {"component": "kube-scheduler"}
    return {"metadata": {"name": "kube-scheduler-cp1", "labels": labels}, "spec": spec}


def lease(seconds: float = 0.0) -> Json:
    """The leader's, of an hour, renewed so many seconds from now."""
    spec = {"holderIdentity": "gpu-topology-1", "leaseDurationSeconds": 3600}
    return {"metadata": {"name": "gpu-topology"}, "spec": {**spec, "renewTime": now(seconds)}}


def endpoint_slice() -> Json:
    """Where the leader answers."""
    found = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"]}], "ports": []}
    return {"metadata": {"name": "gpu-topology-leader-ipv4"}, **found}


def secret(tls: Path) -> Json:
    """The extender's certificate, of the files that ``gpu-topology certificates`` has made."""
    named = {"tls.crt": "extender.crt", "tls.key": "extender.key", "ca.crt": "ca.crt"}
    data = {
        key: base64.b64encode((tls / name).read_bytes()).decode() for key, name in named.items()
    }
    return {"metadata": {"name": "gpu-topology-tls"}, "type": "kubernetes.io/tls", "data": data}


def configuration(tls: Path, url: str) -> Json:
    """kube-scheduler's configuration as it ships, with files and address of this machine."""
    text = (ROOT / "manifests" / "scheduler" / "kube-scheduler-config.yaml").read_text()
    found: Json = yaml.safe_load(text)
    (entry,) = found["extenders"]
    entry["urlPrefix"] = url
    files = {"caFile": "ca.crt", "certFile": "scheduler.crt", "keyFile": "scheduler.key"}
    entry["tlsConfig"] |= {key: str(tls / name) for key, name in files.items()}
    return found


KIND = "kind: KubeSchedulerConfiguration\n"
SCHEDULER = f"{SCHEDULERS}/kube-scheduler-cp1"
SERVED = "gpu-topology.gpu-topology-system.svc"  # a name of the extender
NO_GPUS: Json = {
    "status": {amounts: {"nvidia.com/gpu": "0"} for amounts in ("capacity", "allocatable")}
}


class Installation(ABC):
    """Objects of an API server, which are changed and put back, files, and a kubelet."""

    def __init__(self, folder: Path, tls: Path) -> None:
        self.tls, self.folder = tls, folder
        self.file = folder / "kube-scheduler-config.yaml"
        self.kubelet: Json = {"topologyManagerPolicy": "none"}
        self._before: dict[str, Json] = {}
        self._added: list[str] = []

    @abstractmethod
    def read(self, path: str) -> Json:
        """An object."""

    @abstractmethod
    def write(self, path: str, found: Json) -> None:
        """Write an object, status and all, whether it is there or not."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete an object."""

    def change(self, path: str, patch: Json) -> None:
        """Change an object until :meth:`restored`."""
        self._keep(path)
        self.write(path, merge_patch(self.read(path), patch))

    def remove(self, path: str) -> None:
        """Take an object away until :meth:`restored`."""
        self._keep(path)
        self.delete(path)

    def add(self, path: str, found: Json) -> None:
        """Write an object that is there until :meth:`restored`."""
        self.write(path, found)
        self._added.append(path)

    def _keep(self, path: str) -> None:
        self._before.setdefault(path, copy.deepcopy(self.read(path)))

    def configure(self, change: Callable[[Json], object]) -> None:
        """Change the extender's entry in kube-scheduler's configuration."""
        found = yaml.safe_load(self.file.read_text())
        change(found["extenders"][0])
        self.file.write_text(yaml.safe_dump(found))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Afterwards everything is as before."""
        text, kubelet = self.file.read_text(), copy.deepcopy(self.kubelet)
        try:
            yield
        finally:
            for path in self._added:
                self.delete(path)
            self._added.clear()
            for path, found in self._before.items():
                for part, field in (("status", "observedAt"), ("spec", "renewTime")):
                    if field in found.get(part, {}):
                        found[part][field] = now()  # the clock has gone on meanwhile
                self.write(path, found)
            self._before.clear()
            self.file.write_text(text)
            self.kubelet.clear()
            self.kubelet |= kubelet

    def report(self, **status: Any) -> None:
        """Have the agent say something else, just now."""
        self.change(RECORD, {"status": {"observedAt": now(), **status}})

    def _authority(self) -> Authority:
        certificate, key = (self.tls / f"ca.{kind}" for kind in ("crt", "key"))
        return Authority.load(certificate.read_bytes(), key.read_bytes(), datetime.now(UTC))

    def certify(self, *, ours: bool = True, days: int = 365, name: str = SERVED) -> None:
        """Put a certificate into the extender's Secret that ends so many days from now; of an
        authority of its own unless it is ``ours``."""
        early = datetime.now(UTC) - timedelta(days=400)
        authority = Authority.new("another", early)
        if ours:
            authority = self._authority()
        made = authority.issue("gpu-topology", Use.SERVER, [name], early, 400 + days)
        self.change(SECRET, {"data": {"tls.crt": base64.b64encode(made.certificate).decode()}})

    def call_scheduler(self, name: str) -> None:
        """Give kube-scheduler a certificate of another name."""
        made = self._authority().issue(name, Use.CLIENT, [], datetime.now(UTC), 365)
        certificate, key = self.folder / "other.crt", self.folder / "other.key"
        certificate.write_bytes(made.certificate)
        key.write_bytes(made.key)
        files = {"certFile": str(certificate), "keyFile": str(key)}
        self.configure(lambda entry: entry["tlsConfig"].update(files))


def without_numa_nodes(at: Installation) -> None:
    """The resource as an older release has it."""
    found = copy.deepcopy(at.read(CRD))
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["numaNodes"]
    at.change(CRD, {"spec": {"versions": found["spec"]["versions"]}})


def with_another_policy(at: Installation) -> None:
    """A policy that was changed by hand."""
    found = copy.deepcopy(at.read(f"{POLICIES}/gpu-topology-agent"))
    found["spec"]["validations"][0]["expression"] = "true"
    at.change(f"{POLICIES}/gpu-topology-agent", {"spec": found["spec"]})


def entry(**fields: Any) -> Callable[[Installation], None]:
    """kube-scheduler's entry with other fields; None takes one out."""

    def change(found: Json) -> None:
        changed = merge_patch(found, fields)
        found.clear()
        found.update(changed)

    return lambda at: at.configure(change)


def only_gpus(at: Installation) -> None:
    """An entry for whole GPUs alone, and a node that serves instances."""
    at.configure(lambda entry: entry.update(managedResources=[{"name": "nvidia.com/gpu"}]))
    served = {"capacity": {"nvidia.com/mig-1g.10gb": "7"}}
    at.change(f"{NODES}/{NODE}", {"status": served})


def of_a_class(at: Installation) -> None:
    """An entry with a name that kube-scheduler takes in no entry."""
    at.configure(lambda entry: entry["managedResources"].append({"name": IMPLICIT_NAME}))


def unasked(at: Installation) -> None:
    """A pod that the extender is not asked about."""
    main = {"name": "m", "image": "example/image", "resources": {"limits": {IMPLICIT_NAME: 1}}}
    found = pod(name="unseen", containers=[main])
    at.add("/api/v1/namespaces/default/pods/unseen", found)


def ignored(at: Installation) -> None:
    """An entry of an extender that manages no GPUs."""
    gpus = {"name": "nvidia.com/gpu", "ignoredByScheduler": True}
    at.configure(lambda entry: entry["managedResources"].__setitem__(0, gpus))


def without_extenders(at: Installation) -> None:
    """A configuration that was never changed."""
    at.file.write_text(KIND)


def two_entries(at: Installation) -> None:
    """A configuration with the extender's entry twice."""
    found = yaml.safe_load(at.file.read_text())
    found["extenders"] *= 2
    at.file.write_text(yaml.safe_dump(found))


def written(text: str) -> Callable[[Installation], None]:
    """Something else in place of the configuration."""

    def write(at: Installation) -> None:
        at.file.write_text(text)

    return write


def unknown_manager(at: Installation) -> None:
    """An agent that cannot read the kubelet's configuration."""
    at.change(RECORD, {"spec": {"allocator": {"topologyManagerPolicy": "unknown"}}})


def on_one_socket(at: Installation) -> None:
    """The same on a node with one socket."""
    devices = [{**each, "numaNode": 0} for each in at.read(RECORD)["spec"]["devices"]]
    unknown_manager(at)
    at.change(RECORD, {"spec": {"devices": devices}})


def changed(path: str, **patch: Any) -> Callable[[Installation], None]:
    """An object that differs."""
    return lambda at: at.change(path, patch)


def renewed(seconds: float) -> Callable[[Installation], None]:
    """A Lease that was renewed so many seconds later than now: when the test runs, which may be
    long after it was collected."""
    return lambda at: at.change(LEASE, {"spec": {"renewTime": now(seconds)}})


def removed(path: str) -> Callable[[Installation], None]:
    """An object that is not there."""
    return lambda at: at.remove(path)


def reported(kind: str, message: str) -> Callable[[Installation], None]:
    """A record with a condition that does not hold."""

    def report(at: Installation) -> None:
        fields = [condition(each) for each in CONDITIONS if each != kind]
        at.report(conditions=[*fields, condition(kind, "False", message)])

    return report


def other_kubelet(at: Installation) -> None:
    """A kubelet with a new configuration."""
    at.kubelet["topologyManagerPolicy"] = "single-numa-node"


def without_flag(at: Installation) -> None:
    """A kube-scheduler without a flag for its configuration."""
    at.remove(SCHEDULER)
    at.add(SCHEDULER, static_pod())


def second_scheduler(at: Installation, text: str = "kind: KubeSchedulerConfiguration") -> None:
    """The chart's second scheduler, whose configuration is an object of the cluster."""
    found = {"metadata": {"name": "gpu-topology-scheduler"}, "data": {"config.yaml": text}}
    at.add(f"/api/v1/namespaces/{SYSTEM}/configmaps/gpu-topology-scheduler", found)


def other_release(at: Installation) -> None:
    """An extender of another release than the command's."""
    spec = copy.deepcopy(at.read(EXTENDER)["spec"])
    spec["template"]["spec"]["containers"][0]["image"] = "example/gpu-topology:0.0.9"
    at.change(EXTENDER, {"spec": spec})


def flag(word: str) -> Callable[[Installation], None]:
    """An extender with one more flag."""

    def add(at: Installation) -> None:
        spec = copy.deepcopy(at.read(EXTENDER)["spec"])
        spec["template"]["spec"]["containers"][0]["args"].append(word)
        at.change(EXTENDER, {"spec": spec})

    return add


def in_shadow(at: Installation) -> None:
    """An extender that shall refuse nothing, asked by an entry without a filter."""
    flag("--shadow")(at)
    absent = {"bindVerb": None, "preemptVerb": None, "filterVerb": None, "ignorable": True}
    entry(**absent, httpTimeout="2s")(at)


def gpu_cluster(at: Installation) -> None:
    """The GPU operator's nodes for DRA."""
    kind = {"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster"}
    found = {**kind, "metadata": {"name": "gpu-cluster"}, "spec": {"draDriver": {}}}
    at.add("/apis/nvidia.com/v1alpha1/gpuclusters/gpu-cluster", found)


def second_node(at: Installation) -> None:
    """A node without an agent."""
    at.add(f"{NODES}/new", node("new", **{"nvidia.com/gpu.present": "true"}))


def without_gpus(at: Installation) -> None:
    """A node whose plugin has gone, beside one whose plugin is there."""
    second_node(at)
    at.change(f"{NODES}/{NODE}", NO_GPUS)


def by_dra(bus: str, resource: str = "") -> Callable[[Installation], None]:
    """A node whose one device is published by a DRA driver, with NVIDIA's DeviceClass."""

    def move(at: Installation) -> None:
        at.change(f"{NODES}/{NODE}", NO_GPUS)
        at.report(allocatable=[], allocations=[])
        device = {
            "name": "gpu-0",
            "attributes": {"resource.kubernetes.io/pciBusID": {"string": bus}},
        }
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": pool, "devices": [device]}
        at.add(f"{DRA}/resourceslices/s", {"metadata": {"name": "s"}, "spec": spec})
        selector = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
        of_class: Json = {"selectors": [selector]}
        if resource:
            of_class["extendedResourceName"] = resource
        found = {"metadata": {"name": "gpu.nvidia.com"}, "spec": of_class}
        at.add(f"{DRA}/deviceclasses/gpu.nvidia.com", found)

    return move


def case(
    breaks: Callable[[Installation], object], check: str, state: str, message: str, name: str
) -> Any:
    """Something that is wrong, the check that tells it, and its words."""
    return pytest.param(breaks, check, state, message, id=f"{check}-{name}")


TLS = "tlsConfig"
CASES = [
    case(without_numa_nodes, "resource", "fail", "properties.numaNodes is missing", "older"),
    case(removed(f"{POLICIES}/gpu-topology-records"), "policies", "fail", "missing", "missing"),
    case(with_another_policy, "policies", "fail", "validations.0.expression differs", "changed"),
    case(removed(EXTENDER), "extender", "fail", "there is no Deployment", "not-installed"),
    case(
        changed(EXTENDER, status={"readyReplicas": 0}), "extender", "fail", "no replica of 2", "0"
    ),
    case(changed(EXTENDER, status={"readyReplicas": 1}), "extender", "warn", "1 of 2 replica", "1"),
    case(
        changed(EXTENDER, spec={"replicas": 1}, status={"readyReplicas": 1}),
        "extender",
        "warn",
        "no other replica can take over",
        "alone",
    ),
    case(other_release, "extender", "warn", "is version 0.0.9 but this command is", "release"),
    case(removed(LEASE), "extender", "fail", "no replica holds the Lease", "no-lease"),
    case(
        renewed(-7300),
        "extender",
        "fail",
        "its Lease is 2 h old",
        "old-lease",
    ),
    case(removed(SLICE), "extender", "fail", "the Service has no address", "no-address"),
    case(
        lambda at: at.certify(days=-10), "certificates", "fail", "gpu-topology-tls expired", "ended"
    ),
    case(
        lambda at: at.certify(days=9), "certificates", "warn", "gpu-topology-tls expires in", "ends"
    ),
    case(
        lambda at: at.certify(ours=False), "certificates", "fail", "is not signed by", "authority"
    ),
    case(
        lambda at: at.certify(name="elsewhere"),
        "certificates",
        "fail",
        "which is not a name in tls.crt of the Secret gpu-topology-tls",
        "name",
    ),
    case(
        lambda at: at.call_scheduler("somebody"),
        "certificates",
        "fail",
        "is for somebody, but the extender accepts only kube-sch",
        "client",
    ),
    case(removed(SECRET), "certificates", "fail", "Secret gpu-topology-tls is missing", "secret"),
    case(
        second_scheduler,
        "certificates",
        "fail",
        "Secret gpu-topology-scheduler is missing",
        "second",
    ),
    case(of_a_class, "scheduler", "fail", "kube-scheduler exits because of such a name", "class"),
    case(unasked, "probe", "warn", "default/unseen: kube-scheduler does not send", "unasked"),
    case(
        without_flag,
        "scheduler",
        "fail",
        "kube-scheduler-cp1 runs without --config",
        "no-flag",
    ),
    case(without_extenders, "scheduler", "fail", "it has no extenders", "no-extenders"),
    case(
        second_scheduler,
        "scheduler",
        "fail",
        "ConfigMap gpu-topology-scheduler: it has no extenders",
        "second",
    ),
    *(
        case(
            written(f"{KIND}extenders: {wrong}\n"), "scheduler", "fail", "not a list of map", wrong
        )
        for wrong in ("5", "true", "{a: 1}", "[3]")
    ),
    case(two_entries, "scheduler", "fail", "2 of its extenders name gpu-topology or manage", "two"),
    case(in_shadow, "scheduler", "fail", "filterVerb is missing", "shadow"),
    case(written("a: ["), "scheduler", "fail", "it cannot be read: line", "unreadable"),
    case(written("a: 1"), "scheduler", "fail", "no object of the kind KubeSch", "no-configuration"),
    case(entry(filterVerb=None), "scheduler", "fail", "filterVerb is missing", "no-filter"),
    case(
        entry(bindVerb="tie"),
        "scheduler",
        "fail",
        "bindVerb is 'tie', but must be bind",
        "other-verb",
    ),
    case(entry(preemptVerb=None), "scheduler", "warn", "preemptVerb is missing", "no-preempt"),
    case(only_gpus, "scheduler", "fail", "lacks nvidia.com/mig-1g.10gb", "resources"),
    case(
        entry(managedResources=None), "scheduler", "warn", "every pod of the cluster", "every-pod"
    ),
    case(ignored, "scheduler", "fail", "ignoredByScheduler is true for nvidia", "ignored"),
    case(
        entry(urlPrefix="nowhere"), "scheduler", "fail", "'nowhere', which is not a URL", "no-url"
    ),
    case(entry(urlPrefix="http://a/s"), "scheduler", "fail", "accepts only TLS", "plain-http"),
    case(
        entry(urlPrefix="https://192.0.2.1/s"), "scheduler", "warn", "the Service's add", "address"
    ),
    case(
        entry(urlPrefix="https://gpu-topology.gpu-topology-system.svc:8888/scheduler"),
        "scheduler",
        "fail",
        "uses the host's DNS",
        "dns",
    ),
    case(entry(tlsConfig={"caFile": None}), "scheduler", "fail", "does not verify", "no-ca"),
    case(entry(tlsConfig={"certFile": None}), "scheduler", "fail", "no certFile", "no-certificate"),
    case(entry(httpTimeout=None), "scheduler", "warn", "httpTimeout is 5 s", "usual-timeout"),
    case(
        entry(httpTimeout="10"), "scheduler", "fail", "'10', which is not a duration", "no-duration"
    ),
    case(entry(weight=0), "scheduler", "fail", "weight is 0", "no-weight"),
    case(entry(weight=True), "scheduler", "fail", "weight is True", "weight-true"),
    case(entry(weight=None), "scheduler", "fail", "weight is missing", "weight-missing"),
    case(entry(weight=12), "scheduler", "warn", "overrules all other scores", "weight"),
    case(entry(ignorable=True), "scheduler", "warn", "promises can be broken", "ignorable"),
    case(
        entry(nodeCacheCapable=None), "scheduler", "warn", "sends whole Node objects", "whole-nodes"
    ),
    case(
        changed(RECORD, spec={"allocator": {"pluginVersion": None}}),
        "plugin",
        "warn",
        "the version of NVIDIA's plugin is unknown",
        "unknown",
    ),
    case(
        without_gpus,
        "plugin",
        "fail",
        "train-07: the kubelet serves no GPUs",
        "serves-none",
    ),
    case(by_dra(BUS), "plugin", "warn", "no DeviceClass has extendedResourceName nv", "unnamed"),
    case(
        by_dra("0000:99:00.0"),
        "plugin",
        "fail",
        "gpu-0 of a ResourceSlice is not among the GPUs",
        "other",
    ),
    case(
        changed(f"{NODES}/{NODE}", metadata={"labels": {"nvidia.com/gpu.present": None}}),
        "features",
        "warn",
        "the label nvidia.com/gpu.present is missing",
        "no-label",
    ),
    case(
        changed(f"{NODES}/{NODE}", metadata={"labels": {CLIENT: "paused-for-driver-upgrade"}}),
        "agents",
        "warn",
        "train-07: under maintenance (nvidia.com/gpu.deploy.client=paused-for-driver-upgrade)",
        "maintenance",
    ),
    case(
        gpu_cluster,
        "agents",
        "warn",
        "it does not stop the agent before a driver upgrade",
        "cluster",
    ),
    case(second_node, "agents", "fail", "new: no agent has reported", "missing"),
    case(
        lambda at: at.report(observedAt=now(-600)), "agents", "fail", "the report is stale", "stale"
    ),
    case(reported("Ready", "NVML: no"), "agents", "fail", "not Ready: NVML: no", "not-ready"),
    case(reported("Complete", "links: no"), "agents", "warn", "train-07: links: no", "incomplete"),
    case(unknown_manager, "kubelets", "fail", "configuration: nothing is promised", "unknown"),
    case(on_one_socket, "kubelets", "warn", "configuration: fewer promises", "one-socket"),
    case(
        other_kubelet,
        "kubelets",
        "fail",
        "policy none, but the kubelet has single-numa-node",
        "other",
    ),
    case(lambda at: at.report(observedAt=now(90)), "clocks", "fail", "is 1 min ahead of", "node"),
    case(renewed(900), "clocks", "fail", "the leader's node", "lease"),
    case(
        reported("Ready", "no"), "probe", "warn", "a pod with one GPU: no node takes it", "nobody"
    ),
]
