"""A baseline for the extender, which parses the same requests and returns a fixed answer.

``python -m benchmarks.speed.nothing PORT SHARE [KUBECONFIG]`` serves it, on any free port if PORT
is 0. SHARE is the share of nodes that pass filter, the first ones of a request. With a kubeconfig
it binds, too, and writes the requested Binding.
"""

import sys
from collections.abc import Callable
from itertools import repeat

from fastapi import FastAPI

from benchmarks.speed.processes import HOST, tell
from scheduler_extender import wire
from scheduler_extender.clientlimits import BIND_THREADS, EVALUATING_THREADS, Bodies
from scheduler_extender.http.endpoint import VerbApp
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.http.servers import Servers, listen
from scheduler_extender.http.workers import Workers
from scheduler_extender.kube.binder import KubeBinder
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs import Binding, BindUnknownError, NotWrittenError
from topology.core.devices import NodeName, PodUid
from topology.kubeapi.apiserver import ApiServer

REASON = "not guaranteed: the node may hand out GPUs without link=nvlink"


def _app(share: float, write: Callable[[Binding], None] | None) -> VerbApp:
    """Return the service. filter passes the first names, and prioritize scores each node 5.

    bind exists only if ``write`` is given.
    """

    def filter_(body: wire.Body, arrived: float) -> bytes:
        names = wire.args_decoder.decode(body).node_names or []
        end = round(len(names) * share)
        failed = dict.fromkeys(names[end:], REASON)
        return wire.encode(wire.FilterResult(node_names=names[:end], failed=failed))

    def prioritize(body: wire.Body, arrived: float) -> bytes:
        names = wire.args_decoder.decode(body).node_names or []
        return wire.encode(list(map(wire.HostPriority, names, repeat(5))))

    app = VerbApp(Metrics(), Bodies())
    evaluating = Workers(EVALUATING_THREADS)
    app.add_verb("filter", filter_, evaluating)
    app.add_verb("prioritize", prioritize, evaluating)
    if write is not None:

        def bind(body: wire.Body, arrived: float) -> bytes:
            args = wire.binding_decoder.decode(body)
            uid, node = PodUid(args.pod_uid), NodeName(args.node)
            try:
                write(Binding(args.pod_namespace, args.pod_name, uid, node, "{}"))
            except (NotWrittenError, BindUnknownError) as error:
                return wire.encode(wire.BindingResult(str(error)))
            return wire.encode(wire.BindingResult())

        app.add_verb("bind", bind, Workers(BIND_THREADS))
    return app


def main(port: int, share: float, kubeconfig: str | None) -> None:
    """Print the port, and serve until the process is ended."""
    write = None
    if kubeconfig is not None:
        write = KubeBinder(ApiServer.from_kubeconfig(kubeconfig), Cache(lambda: 0.0)).write
    verbs, people, metrics = listen(HOST, port), listen(HOST, 0), listen(HOST, 0)
    serving = Servers((_app(share, write), verbs), (FastAPI(), [people]), (FastAPI(), metrics))
    serving.run(lambda: tell(serving.ports[0]))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
