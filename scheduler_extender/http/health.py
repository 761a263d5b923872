"""What both ports have: health, readiness, and errors in one form."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from scheduler_extender.http.desk import AGAIN, FullError
from scheduler_extender.http.endpoint import error_line
from scheduler_extender.http.schemas import Error, Healthy
from scheduler_extender.http.service import Service


def add_errors(app: FastAPI) -> None:
    """Answer errors of routing in the one form that all our errors have."""

    @app.exception_handler(HTTPException)
    async def error(request: Request, found: HTTPException) -> Response:
        line = error_line(found.detail)
        return Response(line, found.status_code, found.headers, "application/json")

    @app.exception_handler(FullError)
    async def full(request: Request, found: FullError) -> Response:
        return Response(error_line(str(found)), 503, {"retry-after": AGAIN}, "application/json")


def add_health(app: FastAPI, service: Service) -> None:
    """Add /healthz and /readyz."""

    @app.get("/healthz", response_model=None, responses={200: {"model": Healthy}})
    async def healthz() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok"}

    @app.get(
        "/readyz", response_model=None, responses={200: {"model": Healthy}, 503: {"model": Error}}
    )
    async def readyz() -> Response:
        """The cluster is synced, and no watch has been blind for long."""
        reason = service.not_ready()
        if reason is not None:
            return Response(error_line(reason), 503, media_type="application/json")
        return Response(b'{"status":"ok"}', media_type="application/json")
