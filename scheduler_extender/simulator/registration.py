"""Register played nodes at an API server, renew their Leases, and remove all of it again.

Our objects have the label ``gpu-topology.io/played``. Objects without it are left alone, except the
pods that are bound to our nodes. The record of a node is made first and removed last: so the
records name every node of which something may be there, also after a kill.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

import msgspec

from scheduler_extender.annotations import MANAGED, PREFIX, managed_among
from scheduler_extender.files.clusterfile import ClusterFile
from scheduler_extender.files.machinegroups import allocatable_of
from scheduler_extender.kube.reading import listed
from scheduler_extender.kube.sinks import (
    NODES_PATH,
    PAGE,
    PODS_PATH,
    RECORDS_PAGE,
    RECORDS_PATH,
    metadata_of,
)
from scheduler_extender.simulator.overapi import WRITERS, PlayedNodes
from scheduler_extender.simulator.scene import Observer
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.wire import ObjectMeta, Taint, node_decoder, pod_decoder
from topology import codec
from topology.core.admission import device_manager_of
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.kubeapi.apiserver import (
    ApiFailure,
    ApiServer,
    ConflictError,
    NotFoundError,
    path,
)

PLAYED = PREFIX + "played"  # the label of our objects, and the taint of our Nodes
LABELS = {PLAYED: "true"}
OURS = (("labelSelector", f"{PLAYED}=true"),)
LEASES_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_SECONDS = 40  # as the kubelet's
RENEWAL = 10.0  # seconds between two renewals of a Lease
HEARTBEAT = 60.0  # seconds between two reports of a node on which nothing happens
TIMEOUT = 10.0  # seconds for one write
ALL_TIMEOUT = 70.0  # the same for the deletion of a collection, which an API server ends after 60
AT_ONCE = {"gracePeriodSeconds": 0}
READY = {"conditions": [{"type": "Ready", "status": "True", "reason": "Played"}]}
# The verbs that a play needs, with the API group and the resource.
RIGHTS = (
    ("list create deletecollection", "", "nodes"),
    ("patch", "", "nodes/status"),
    ("get list create deletecollection", "gpu-topology.io", "gputopologies"),
    ("patch", "gpu-topology.io", "gputopologies/status"),
    ("create patch deletecollection", "coordination.k8s.io", "leases"),
    ("list watch delete", "", "pods"),
    ("patch", "", "pods/status"),
    ("create", "", "events"),
)


def _write(write: Callable[..., bytes], where: str, body: Mapping[str, Any]) -> Any:
    """Send an object by a method of the client, and return the answer."""
    return msgspec.json.decode(write(where, msgspec.json.encode(body), timeout=TIMEOUT))


def missing_rights(api: ApiServer) -> list[str]:
    """Return the rights for a play that the user lacks, such as ``patch pods/status``."""
    reviews, found = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", []
    for verbs, group, resource in RIGHTS:
        kind, _, part = resource.partition("/")
        for verb in verbs.split():
            asked = {"verb": verb, "group": group, "resource": kind, "subresource": part}
            answer = _write(api.create, reviews, {"spec": {"resourceAttributes": asked}})
            if not answer["status"]["allowed"]:
                found.append(f"{verb} {resource}")
    return found


def survey(api: ApiServer) -> tuple[set[str], set[str], set[str]]:
    """Return the names of played Nodes and records, of all others, and of the others with GPUs.

    Raises :class:`.ApiFailure`.
    """
    nodes = [node_decoder.decode(raw) for raw in listed(api, NODES_PATH, PAGE)[0]]
    found = [n.metadata for n in nodes if managed_among(n.status.allocatable or (), MANAGED)]
    with suppress(NotFoundError):
        records = map(metadata_of, listed(api, RECORDS_PATH, RECORDS_PAGE)[0])
        found += [each for each in records if each is not None]
    every = [*found, *(node.metadata for node in nodes)]
    others = {each.name for each in every if PLAYED not in (each.labels or {})}
    return {each.name for each in every} - others, others, {each.name for each in found} & others


def remove(api: ApiServer, nodes: set[str]) -> None:
    """Remove all played nodes, and the pods that are bound to one of ``nodes``.

    A pod of a Job stays until the Job's controller has counted it. Raises :class:`.ApiFailure`.
    """
    at_once, gone = msgspec.json.encode(AT_ONCE), set[str]()
    api.delete(NODES_PATH, at_once, OURS, timeout=ALL_TIMEOUT)
    while left := [pod for pod in _pods_on(api, nodes) if pod.uid not in gone]:
        for pod in left:
            where = path("/api/v1/namespaces", pod.namespace, "pods", pod.name)
            with suppress(NotFoundError, ConflictError):
                options = msgspec.json.encode({**AT_ONCE, "preconditions": {"uid": pod.uid}})
                api.delete(where, options, timeout=TIMEOUT)
            gone.add(pod.uid)
    for where in (LEASES_PATH, RECORDS_PATH):
        with suppress(NotFoundError):
            api.delete(where, at_once, OURS, timeout=ALL_TIMEOUT)


def _pods_on(api: ApiServer, nodes: set[str]) -> list[ObjectMeta]:
    pods = map(pod_decoder.decode, listed(api, PODS_PATH, PAGE)[0] if nodes else ())
    return [pod.metadata for pod in pods if pod.spec.node_name in nodes]


class RegisteredNodes(PlayedNodes):
    """The nodes of a cluster file, in a cluster that has none of them, played inside the block.

    They are registered at the beginning of the block. After its end, :func:`remove` removes them.
    ``removed`` says that they are gone meanwhile, by another call of :func:`remove`.
    """

    def __init__(self, api: ApiServer, content: ClusterFile, observer: Observer) -> None:
        super().__init__(api, (each.topology for each in content.records), 1, observer, HEARTBEAT)
        self.removed = False
        self._content = content
        self._leases: dict[NodeName, str] = {}  # the UID of each node's Lease

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(self._register, self.nodes))
        self.clock.post(self._renew_all)
        return super().__enter__()

    def _register(self, name: NodeName) -> None:
        """Make a node's record, its Lease and, last, the Node, which may get pods at once."""
        topology, metadata = self.nodes[name].topology, {"name": name, "labels": LABELS}
        _write(self._api.create, RECORDS_PATH, codec.encode(topology) | {"metadata": metadata})
        lease = _write(self._api.create, LEASES_PATH, _lease(name, metadata))
        self._leases[name] = lease["metadata"]["uid"]
        _write(self._api.create, NODES_PATH, _node(topology, self._content))

    def _renew_all(self) -> None:
        for name in self.nodes:
            self._writes.put(f"the Lease of {name}", partial(self._renew, name))
        self.clock.after(RENEWAL, self._renew_all)

    def _renew(self, name: NodeName) -> bool:
        """Renew a Lease; return whether that is done.

        The Node is called ready, too. That changes nothing, unless the control plane has called it
        lost, as after an outage of the API server.
        """
        lease = _lease(name, {"uid": self._leases[name]})
        try:
            _write(self._api.patch, path(LEASES_PATH, name), lease)
            with suppress(NotFoundError, ConflictError):
                _write(self._api.patch, path(NODES_PATH, name, "status"), {"status": READY})
        except (NotFoundError, ConflictError):
            self.removed = True
        except ApiFailure:
            return False
        return True


def _lease(name: NodeName, metadata: Mapping[str, object]) -> dict[str, object]:
    return {
        "metadata": metadata,
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),  # with six digits
        },
    }


def _node(topology: NodeTopology, content: ClusterFile) -> dict[str, object]:
    """Return the Node as its kubelet would register it."""
    name = topology.name
    given = content.nodes.get(name, NodeObject())
    amounts = content.allocatable.get(name) or allocatable_of({})
    allocatable = {
        "cpu": f"{amounts.cpu}m",
        "memory": str(amounts.memory),
        "pods": str(amounts.pods),
    }
    for served in topology.resources:
        allocatable[served.name] = str(device_manager_of(topology, served).devices_served)
    return {
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                # A cloud that looks for the machine of each node would update no load balancer.
                "node.kubernetes.io/exclude-from-external-load-balancers": "true",
                **given.labels,
                **LABELS,
            },
        },
        "spec": {
            "taints": [*dict.fromkeys((*given.taints, Taint(PLAYED, "", "NoSchedule")))],
            "unschedulable": given.cordoned,
        },
        "status": {
            "capacity": allocatable,
            "allocatable": allocatable,
            "nodeInfo": {"kubeletVersion": "played"},
            **READY,
        },
    }
