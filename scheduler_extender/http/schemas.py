"""The schemas in ``/openapi.json`` of the structs that the port for people sends.

FastAPI describes pydantic's models by itself. Our structs are msgspec's, so we add their schemas.
"""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI

from scheduler_extender.explain import Struct
from scheduler_extender.explain.explanation import Explanation, Unreadable
from scheduler_extender.explain.nodesummary import NodeInBrief, NodeWhole


class Error(Struct, frozen=True):
    """The reason why a request is refused, in one line."""

    error: str


class Healthy(Struct, frozen=True):
    """The answer of a process that lives, or is ready."""

    status: Literal["ok"]


class ReportBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A report in place of a kubelet's."""

    node: str
    status: Annotated[dict[str, Any], msgspec.Meta(description="as in a GPUTopology object")]
    ended_pods: Annotated[
        list[str], msgspec.Meta(description="UIDs of the pods that have ended")
    ] = []


Schema = dict[str, Any]
STRUCTS = (NodeInBrief, NodeWhole, Explanation, Unreadable, Error, Healthy, ReportBody)


def content(*structs: type[Struct], many: bool = False) -> Schema:
    """Describe JSON content that is one of these structs, or with ``many`` a list of them."""
    refs = [{"$ref": f"#/components/schemas/{struct.__name__}"} for struct in structs]
    schema: Schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"application/json": {"schema": {"type": "array", "items": schema} if many else schema}}


def answers(*structs: type[Struct], many: bool = False) -> dict[int | str, Schema]:
    """Describe a route's answers: one of these structs (with ``many`` a list), or an error."""
    return {200: {"content": content(*structs, many=many)}, **REFUSED}


REFUSED: dict[int | str, Schema] = {
    status: {"description": text, "content": content(Error)}
    for status, text in (("4XX", "Client Error"), ("5XX", "Server Error"))
}


DESCRIPTION = (
    "The state of the cluster's GPUs, each node's answer to a pod, and why a pod waits. Nothing "
    "here writes to the cluster. Fields may be added, so ignore unknown ones."
)


def describe(app: FastAPI) -> None:
    """Add the structs' schemas to ``/openapi.json``."""
    routes = app.openapi

    def openapi() -> Schema:
        _, schemas = msgspec.json.schema_components(
            STRUCTS, ref_template="#/components/schemas/{name}"
        )
        return routes() | {"components": {"schemas": schemas}}

    app.openapi = openapi  # type: ignore[method-assign]
