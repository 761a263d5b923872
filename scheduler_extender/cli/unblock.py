"""``gpu-topology unblock``: whom to evict so that a waiting pod gets a guaranteed place.

The plan is the extender's. ``--evict`` carries it out with the rights of whoever calls it: the
extender itself may evict nobody. First the place is reserved, by an annotation on the waiting pod;
only when the extender says that it keeps that place the first pod is evicted. So nobody is evicted
for a place that another pod has taken meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from scheduler_extender.annotations import KEPT_PLACE
from scheduler_extender.cli.adminport import (
    ADMIN,
    AdminCaOption,
    AdminOption,
    AdminPort,
    ContextOption,
    TokenOption,
)
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import one_of
from scheduler_extender.cli.node import token_of
from scheduler_extender.state.reserved import MAX_SECONDS, value_of
from topology.core.devices import NodeName, PodUid

if TYPE_CHECKING:
    from topology.kubeapi.apiserver import ApiServer

TIMEOUT = 10.0
PATIENCE = 30.0
"""Seconds for one request; and until the extender has seen that a place is to be kept."""
AGAIN = 2.0
"""Seconds after which an eviction that a budget forbids is tried again."""
TOO_MANY_REQUESTS = 429
GONE = (404, 409)
"""The pod is gone, or another one has its name."""


def unblock(
    pod: Annotated[str, typer.Argument(metavar="POD", hidden=True)],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="The pod's namespace.")
    ] = "default",
    output: Annotated[str, typer.Option(metavar="FORM", help="text or json.")] = "text",
    evict: Annotated[
        bool, typer.Option("--evict", help="Carry the plan out, with your own rights.")
    ] = False,
    keep: Annotated[
        int,
        typer.Option(
            "--keep", metavar="SECONDS", help="With --evict: for how long the place is kept."
        ),
    ] = 600,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --evict: the cluster. Without --kubeconfig: the one in which the command "
            "runs. Without --evict: whose token to show to the admin port.",
        ),
    ] = None,
    context: ContextOption = None,
    admin: AdminOption = ADMIN,
    admin_ca: AdminCaOption = None,
    token: TokenOption = None,
) -> None:
    """Say whom to evict so that a waiting pod can run.

    POD is the name of a waiting pod, or NAMESPACE/NAME. The command asks the extender's admin port,
    which has to be forwarded (kubectl port-forward) and asks for a token, for the cheapest set of
    evictions; each of the evicted pods has a guaranteed place elsewhere, or is named as lost. With
    --evict it reserves the place and evicts the pods through the Eviction API, which needs the
    rights of the ClusterRole gpu-topology-unblocker. Exits with 1 where nobody is worth evicting.
    """
    as_json = one_of("--output", output, {"json": True}, False, "text")
    if not 30 <= keep <= MAX_SECONDS:
        raise BadInputError(f"--keep: allowed are 30 to {MAX_SECONDS:.0f} seconds, not {keep}")
    where, _, name = pod.rpartition("/")
    place = f"/v1/unblock/{quote(where or namespace, safe='')}/{quote(name, safe='')}"
    port = AdminPort(
        admin.rstrip("/"), admin_ca, token or token_of(kubeconfig, context, needed=not evict)
    )
    found = port.get(place)
    if found is None:
        raise BadInputError(f"the extender knows of no pod {where or namespace}/{name} with GPUs")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo("\n".join(found["text"]))
    plan = found.get("plan")
    done = bool(found["node"] or found.get("takes") or found.get("reserved") or plan)
    if evict and plan and plan["steps"]:
        carried = _Carrying(port, place, where or namespace, name, PodUid(found["uid"]), plan, keep)
        carried.out(kubeconfig, context)
    raise typer.Exit(0 if done else 1)


@dataclass(frozen=True, slots=True)
class _Carrying:
    """A plan that is carried out; ``place`` is the path at the admin port that made it."""

    port: AdminPort
    place: str
    namespace: str
    name: str
    uid: PodUid
    plan: dict[str, Any]
    keep: int

    def out(self, kubeconfig: Path | None, context: str | None) -> None:
        """Reserve, wait until the extender keeps the place, and evict."""
        from topology.kubeapi.apiserver import ApiFailure, ApiServer

        try:
            if kubeconfig is not None:
                api = ApiServer.from_kubeconfig(kubeconfig, context)
            else:
                api = ApiServer.in_cluster()
        except ApiFailure as error:
            hint = "" if kubeconfig else "; outside a cluster give --kubeconfig PATH"
            raise BadInputError(f"nobody was evicted: {error}{hint}") from error
        until = time.time() + self.keep
        steps = self.plan["steps"]
        try:
            self._reserve(api, until)
        except ApiFailure as error:
            raise BadInputError(f"nobody was evicted: the place is not ours: {error}") from error
        try:
            self._wait_until_kept()
        except BadInputError:
            self._give_back(api)
            raise
        evicted = self._evict(api, steps, until)
        if not evicted:
            self._give_back(api)
            raise BadInputError("nobody was evicted, and the place is kept no more")
        when = time.strftime("%H:%M UTC", time.gmtime(until))
        typer.echo(
            f"{evicted} of {len(steps)} evicted; {self.plan['node']} keeps the place for "
            f"{self.namespace}/{self.name} until {when}",
            err=True,
        )
        if evicted < len(steps):
            raise typer.Exit(1)

    def _reserve(self, api: ApiServer, until: float) -> None:
        victims = [PodUid(step["uid"]) for step in self.plan["steps"]]
        node = NodeName(self.plan["node"])
        self._annotate(api, value_of(self.uid, node, until, victims))

    def _give_back(self, api: ApiServer) -> None:
        """Keep the place no more; the pod may be gone."""
        from topology.kubeapi.apiserver import ApiFailure

        try:
            self._annotate(api, None)
        except ApiFailure as error:
            typer.echo(f"the place is kept until its time is up: {error}", err=True)

    def _annotate(self, api: ApiServer, value: str | None) -> None:
        from topology.kubeapi.paths import path

        body = {"metadata": {"uid": self.uid, "annotations": {KEPT_PLACE: value}}}
        where = path("/api/v1/namespaces", self.namespace, "pods", self.name)
        api.patch(where, json.dumps(body).encode(), timeout=TIMEOUT)

    def _wait_until_kept(self) -> None:
        """Wait until the extender keeps this very place. Raises :class:`BadInputError`."""
        deadline = time.monotonic() + PATIENCE
        victims = sorted(step["uid"] for step in self.plan["steps"])
        while time.monotonic() < deadline:
            found = self.port.get(self.place) or {}
            kept = found.get("reserved")
            if kept and kept["node"] == self.plan["node"] and kept["victims"] == victims:
                if kept["holds"]:
                    return
                raise BadInputError("nobody was evicted: the place was taken meanwhile")
            if found.get("node"):
                raise BadInputError(f"nobody was evicted: the pod is on {found['node']} now")
            time.sleep(0.2)
        raise BadInputError("nobody was evicted: the extender does not keep the place")

    def _evict(self, api: ApiServer, steps: Sequence[dict[str, Any]], until: float) -> int:
        """Evict one after the other; how many are on their way out or gone."""
        from topology.kubeapi.apiserver import ApiError, ApiFailure

        done = 0
        for step in steps:
            who = f"{step['namespace']}/{step['pod']}"
            while True:
                try:
                    _evict(api, step)
                    done += 1
                    typer.echo(f"evicted {who}", err=True)
                except ApiError as error:
                    if error.status == TOO_MANY_REQUESTS and time.time() + AGAIN < until:
                        time.sleep(AGAIN)
                        continue
                    if error.status in GONE:
                        done += 1
                        typer.echo(f"{who} is gone already", err=True)
                    else:
                        typer.echo(f"{who} was not evicted: {error}", err=True)
                        return done
                except ApiFailure as error:
                    typer.echo(f"{who} was not evicted: {error}", err=True)
                    return done
                break
        return done


def _evict(api: ApiServer, step: dict[str, Any]) -> None:
    """Evict a pod if it is still the same. Raises ApiFailure."""
    from topology.kubeapi.paths import path

    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": step["pod"], "namespace": step["namespace"]},
        "deleteOptions": {"preconditions": {"uid": step["uid"]}},
    }
    where = path("/api/v1/namespaces", step["namespace"], "pods", step["pod"], "eviction")
    api.create(where, json.dumps(body).encode(), timeout=TIMEOUT)
