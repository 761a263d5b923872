"""The floor: a service that decodes a request and encodes an answer of full size, no more."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.routing import Route

from scheduler_extender import wire
from scheduler_extender.http.endpoint import Verb
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.limits import Bodies

REASON = "not guaranteed: the node may hand out GPUs without link=nvlink"


def create_nothing_app(metrics: Metrics) -> FastAPI:
    """Filter passes the first half of the names and fails the rest; prioritize scores each 5."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def filter_(body: wire.Body, arrived: float) -> bytes:
        names = wire.args_decoder.decode(body).node_names or []
        half = len(names) // 2
        failed = dict.fromkeys(names[half:], REASON)
        return wire.encode(wire.FilterResult(node_names=names[:half], failed=failed))

    def prioritize(body: wire.Body, arrived: float) -> bytes:
        names = wire.args_decoder.decode(body).node_names or []
        return wire.encode([{"Host": name, "Score": 5} for name in names])

    for name, answer in (("filter", filter_), ("prioritize", prioritize)):
        app.router.routes.append(
            Route(f"/scheduler/{name}", Verb(name, answer, metrics, Bodies()), methods=["POST"])
        )
    return app
