"""The floor: a service that decodes a request and encodes an answer of full size, no more.

``python -m benchmarks.speed.nothing PORT [KUBECONFIG]`` serves it by itself: every node passes
filter. With a kubeconfig it binds, too: it writes the Binding that it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import anyio
from fastapi import FastAPI
from starlette.routing import Route

from scheduler_extender import wire
from scheduler_extender.http.endpoint import Verb
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.limits import BIND_THREADS, Bodies
from scheduler_extender.verbs import Binding
from topology.core.devices import NodeName, PodUid

REASON = "not guaranteed: the node may hand out GPUs without link=nvlink"


def create_nothing_app(
    metrics: Metrics, passing: float = 0.5, write: Callable[[Binding], None] | None = None
) -> FastAPI:
    """Filter passes the first names, a share ``passing``, and fails the rest; prioritize scores
    each 5. bind is there if there is somebody to ``write`` it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def filter_(body: wire.Body, arrived: float) -> bytes:
        names = wire.args_decoder.decode(body).node_names or []
        end = round(len(names) * passing)
        failed = dict.fromkeys(names[end:], REASON)
        return wire.encode(wire.FilterResult(node_names=names[:end], failed=failed))

    def prioritize(body: wire.Body, arrived: float) -> bytes:
        names = wire.args_decoder.decode(body).node_names or []
        return wire.encode([{"Host": name, "Score": 5} for name in names])

    for name, answer in (("filter", filter_), ("prioritize", prioritize)):
        app.router.routes.append(
            Route(f"/scheduler/{name}", Verb(name, answer, metrics, Bodies()), methods=["POST"])
        )
    if write is not None:
        threads = anyio.CapacityLimiter(BIND_THREADS)

        def bind(body: wire.Body, arrived: float) -> bytes:
            args = wire.binding_decoder.decode(body)
            uid, node = PodUid(args.pod_uid), NodeName(args.node)
            write(Binding(args.pod_namespace, args.pod_name, uid, node, "{}"))
            return wire.encode(wire.BindingResult())

        verb = Verb("bind", bind, metrics, Bodies(), threads=threads)
        app.router.routes.append(Route("/scheduler/bind", verb, methods=["POST"]))
    return app


def main(port: int, kubeconfig: str | None) -> None:
    """Serve until the process is ended."""
    from scheduler_extender.http.servers import Servers, listen
    from scheduler_extender.kube.binder import KubeBinder
    from scheduler_extender.state.cluster import Cluster
    from topology.kubeapi.apiserver import ApiServer

    metrics, write = Metrics(), None
    if kubeconfig is not None:
        write = KubeBinder(ApiServer.from_kubeconfig(kubeconfig), Cluster(lambda: 0.0)).write
    app = create_nothing_app(metrics, 1.0, write)
    sockets = (listen("127.0.0.1", port), listen("127.0.0.1", 0))
    Servers(app, FastAPI(), sockets, metrics.strangers).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
