"""What label selectors select: asked of the API server, which reads them as for kubectl."""

from __future__ import annotations

import msgspec

from scheduler_extender.kube.onelook import NODES_PATH, PAGE, PODS_PATH, Reader, listed
from scheduler_extender.kube.sinks import metadata_decoder
from topology.kubeapi.apiserver import path


def node_names(api: Reader, selector: str) -> set[str]:
    """The names of the nodes that a label selector selects.

    Raises :class:`~topology.kubeapi.apiserver.ApiFailure`: an ``ApiError`` of status 400 where the
    selector cannot be read.
    """
    found, _ = listed(api, NODES_PATH, PAGE, [("labelSelector", selector)])
    return {metadata_decoder.decode(raw).metadata.name for raw in found}


def unbound_pods(api: Reader, namespace: str | None, selector: str | None) -> list[msgspec.Raw]:
    """The pods that are on no node yet, of one namespace or (None) of all, whether they ask for
    GPUs or not. Raises as :func:`node_names`."""
    where = PODS_PATH if namespace is None else path("/api/v1/namespaces", namespace, "pods")
    query = [("fieldSelector", "spec.nodeName=")]
    if selector is not None:
        query.append(("labelSelector", selector))
    return listed(api, where, PAGE, query)[0]
