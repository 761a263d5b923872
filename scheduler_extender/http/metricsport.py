"""The port for Prometheus and the kubelet's probes: /metrics, /healthz, /readyz."""

from fastapi import FastAPI
from prometheus_client import generate_latest
from starlette.responses import PlainTextResponse, Response

from scheduler_extender.clientlimits import PEOPLE_WAITING
from scheduler_extender.http.bothports import Service, add_errors, add_health
from scheduler_extender.http.requestqueue import RequestQueue


def create_metrics_app(service: Service) -> FastAPI:
    """What tells how the extender is, and nothing of pods; everybody who reaches it may read it."""
    app = FastAPI(title="gpu-topology metrics", openapi_url=None)
    queue = RequestQueue(1, PEOPLE_WAITING)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(await queue.shared("metrics", text), media_type="text/plain")

    def text() -> bytes:
        service.metrics.ready.set(service.not_ready() is None)
        return generate_latest(service.metrics.registry)

    add_health(app, service)
    add_errors(app)
    return app
