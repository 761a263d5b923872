"""What the pods without GPUs ask for on a node: asked of the API server when a plan needs it.

Most pods of a cluster are none of ours, and nobody keeps a picture of them (:class:`.PodSink`).
"""

from __future__ import annotations

from collections import Counter

import msgspec
import structlog

from scheduler_extender.kube.binder import PODS_PATH
from scheduler_extender.state.pods.record import ENDED, pod_record
from scheduler_extender.state.pods.standing import Amounts, asks_of
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName
from topology.kubeapi.apiserver import ApiFailure, ApiServer

log = structlog.get_logger(__name__)

TIMEOUT = 2.0  # seconds for the pods of one node


class _Pods(msgspec.Struct):
    items: list[Pod] | None = None


_decode = msgspec.json.Decoder(_Pods).decode


class OtherPods:
    """Asks an API server; ``managed`` are the resources of the pods that are not meant."""

    def __init__(self, api: ApiServer, managed: tuple[str, ...]) -> None:
        self._api = api
        self._managed = managed

    def on(self, name: NodeName) -> Amounts | None:
        """:data:`.standing.Others`; None where the API server cannot tell."""
        # Version 0: whatever its cache has. A list that is newer would read all pods of the cluster
        # from etcd where the API server is older than 1.31.
        query = (("fieldSelector", f"spec.nodeName={name}"), ("resourceVersion", "0"))
        try:
            pods = _decode(self._api.get(PODS_PATH, query, timeout=TIMEOUT)).items or ()
        except (ApiFailure, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.warning("the pods of a node cannot be listed", node=name, problem=str(error))
            return None
        found: Counter[str] = Counter()
        for pod in pods:
            if pod.status.phase in ENDED or pod_record(pod, self._managed) is not None:
                continue
            found.update(dict(asks_of(pod, self._managed)))
            found["pods"] += 1000
        return tuple(sorted(found.items()))
