"""The port for Prometheus and the kubelet's probes: /metrics, /healthz, /readyz."""

from fastapi import FastAPI
from prometheus_client import generate_latest
from starlette.responses import PlainTextResponse, Response

from scheduler_extender.clientlimits import PEOPLE_WAITING
from scheduler_extender.http.bothports import Service, add_errors, add_health
from scheduler_extender.http.requestqueue import RequestQueue


def create_metrics_app(service: Service) -> FastAPI:
    """Return the app with metrics and health.

    Every client that reaches the port may read them, so they contain nothing about single pods.
    """
    app = FastAPI(title="gpu-topology metrics", openapi_url=None)
    queue = RequestQueue(1, PEOPLE_WAITING)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(await queue.shared("metrics", text), media_type="text/plain")

    def text() -> bytes:
        service.metrics.ready.set(service.not_ready() is None)
        return generate_latest(service.metrics.registry)

    add_health(app, service)
    add_errors(app)
    return app
