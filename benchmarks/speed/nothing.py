"""What the extender is compared with: services that decode a request and encode a full answer.

The one does no more; the other also looks each name up, as whoever answers by node has to.

``python -m benchmarks.speed.nothing PORT [KUBECONFIG]`` serves it by itself: every node passes
filter. With a kubeconfig it binds, too: it writes the Binding that it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import repeat

import anyio
from fastapi import FastAPI

from scheduler_extender import wire
from scheduler_extender.http.endpoint import Verb, VerbApp
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.limits import BIND_THREADS, Bodies
from scheduler_extender.verbs import BindError, Binding, BindUnknownError
from topology.core.devices import NodeName, PodUid

Answer = Callable[[wire.ExtenderArgs, float], bytes]

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

    app = _app(metrics, filter_, prioritize)
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


def create_lookup_app(metrics: Metrics, names: Sequence[str]) -> FastAPI:
    """The same for these names: filter passes those that a dict says pass, every second one, and
    prioritize scores each as another says."""
    passes = {name: at % 2 == 0 for at, name in enumerate(names)}
    score = {name: at % 11 for at, name in enumerate(names)}

    def filter_(args: wire.ExtenderArgs, arrived: float) -> bytes:
        asked = args.node_names or []
        passed: list[str] = []
        refused: list[str] = []
        put = (refused.append, passed.append)
        for name, at in zip(asked, map(passes.__getitem__, asked), strict=True):
            put[at](name)
        failed = dict.fromkeys(refused, REASON)
        return wire.encode(wire.FilterResult(node_names=passed, failed=failed))

    def prioritize(args: wire.ExtenderArgs, arrived: float) -> bytes:
        asked = args.node_names or []
        found = map(wire.HostPriority, asked, map(score.__getitem__, asked))
        return wire.encode(list(found))

    return _app(metrics, filter_, prioritize)


def _app(metrics: Metrics, filter_: Answer, prioritize: Answer) -> VerbApp:
    app = VerbApp(metrics, Bodies())
    for name, answer in (("filter", filter_), ("prioritize", prioritize)):
        app.add_verb(name, Verb(wire.args_decoder.decode, answer))
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
    sockets = (listen("127.0.0.1", port), listen("127.0.0.1", 0))
    Servers(app, FastAPI(), sockets, metrics.strangers).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
