"""What the extender is compared with: a service that decodes a request and encodes a full answer.

``python -m benchmarks.speed.nothing PORT [KUBECONFIG]`` serves it by itself: every node passes
filter. With a kubeconfig it binds, too: it writes the Binding that it is asked for.
"""

import sys
from collections.abc import Callable
from itertools import repeat

import anyio
from fastapi import FastAPI

from scheduler_extender import wire
from scheduler_extender.http.endpoint import Verb, VerbApp
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.limits import BIND_THREADS, Bodies
from scheduler_extender.verbs import BindError, Binding, BindUnknownError
from topology.core.devices import NodeName, PodUid

REASON = "not guaranteed: the node may hand out GPUs without link=nvlink"


def create_nothing_app(
    metrics: Metrics, passing: float = 0.5, write: Callable[[Binding], None] | None = None
) -> FastAPI:
    """Filter passes the first names, a share ``passing``, and fails the rest; prioritize scores
    each 5. bind is there if there is somebody to ``write`` it."""

    def filter_(args: wire.ExtenderArgs, arrived: float) -> bytes:
        names = args.node_names or []
        end = round(len(names) * passing)
        failed = dict.fromkeys(names[end:], REASON)
        return wire.encode(wire.FilterResult(node_names=names[:end], failed=failed))

    def prioritize(args: wire.ExtenderArgs, arrived: float) -> bytes:
        names = args.node_names or []
        return wire.encode(list(map(wire.HostPriority, names, repeat(5))))

    app = VerbApp(metrics, Bodies())
    app.add_verb("filter", Verb(wire.args_decoder.decode, filter_))
    app.add_verb("prioritize", Verb(wire.args_decoder.decode, prioritize))
    if write is not None:
        threads = anyio.CapacityLimiter(BIND_THREADS)

        def bind(args: wire.BindingArgs, arrived: float) -> bytes:
            uid, node = PodUid(args.pod_uid), NodeName(args.node)
            try:
                write(Binding(args.pod_namespace, args.pod_name, uid, node, "{}"))
            except (BindError, BindUnknownError) as error:
                return wire.encode(wire.BindingResult(str(error)))
            return wire.encode(wire.BindingResult())

        decode = wire.binding_decoder.decode
        app.add_verb("bind", Verb(decode, bind, threads))
    return app


def main(port: int, kubeconfig: str | None) -> None:
    """Serve until the process is ended."""
    from scheduler_extender.http.servers import Servers, listen
    from scheduler_extender.kube.binder import KubeBinder
    from scheduler_extender.state.cluster.cluster import Cluster
    from topology.kubeapi.apiserver import ApiServer

    metrics, write = Metrics(), None
    if kubeconfig is not None:
        write = KubeBinder(ApiServer.from_kubeconfig(kubeconfig), Cluster(lambda: 0.0)).write
    app = create_nothing_app(metrics, 1.0, write)
    empty = FastAPI(), listen("127.0.0.1", 0)
    people = FastAPI(), [listen("127.0.0.1", 0)]
    Servers((app, listen("127.0.0.1", port)), people, empty).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
